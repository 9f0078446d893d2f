/* Loops of the thread pool: each index once, whatever the number of parts, in
 * loops that follow each other at once and after a rest; nested loops; shares;
 * copies; errors. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/math/threads.h"
#include "test.h"

enum { MOST = 1000 };

struct counts {
    atomic_int seen[MOST];
    atomic_size_t parts;
    size_t grain, n;
    struct threads_shares shares;
};

static void count(void *ctx, size_t begin, size_t end)
{
    struct counts *c = ctx;

    CHECK(begin < end && end <= c->n);
    CHECK(end - begin >= c->grain || end == c->n);
    for (size_t i = begin; i < end; i++)
        atomic_fetch_add(&c->seen[i], 1);
    atomic_fetch_add(&c->parts, 1);
}

static void loop(size_t n, size_t grain)
{
    static struct counts c;

    c.grain = grain;
    c.n = n;
    for (size_t i = 0; i < MOST; i++)
        atomic_store(&c.seen[i], 0);
    atomic_store(&c.parts, 0);
    threads_for(n, grain, count, &c);
    for (size_t i = 0; i < MOST; i++)
        CHECK(atomic_load(&c.seen[i]) == (i < n));
    CHECK(n ? atomic_load(&c.parts) > 0 : !atomic_load(&c.parts));
}

static void nested(void *ctx, size_t begin, size_t end)
{
    (void)ctx;
    for (size_t i = begin; i < end; i++) {
        struct counts c = { .grain = 1, .n = 50 };

        threads_for(50, 1, count, &c);
        for (size_t k = 0; k < 50; k++)
            CHECK(atomic_load(&c.seen[k]) == 1);
    }
}

/* Each index once, no more than one of eight threads' share of what is left, rounded
 * down, or one. */
static void take_shares(void *ctx, size_t begin, size_t end)
{
    struct counts *c = ctx;
    size_t first, n;

    for (size_t i = begin; i < end; i++)
        while ((n = threads_take(&c->shares, &first))) {
            CHECK(n <= 6 && first + n <= c->n);
            CHECK(n == 1 || n <= (c->n - first) / 8);
            for (size_t k = first; k < first + n; k++)
                atomic_fetch_add(&c->seen[k], 1);
        }
}

static void shares(size_t n)
{
    struct counts c = { .n = n, .shares = { .n = n, .most = 6 } };

    CHECK(threads_longest(&c.shares) == (n < 8 ? n > 0 : n < 48 ? n / 8 : 6));
    threads_for(8, 1, take_shares, &c);
    for (size_t i = 0; i < MOST; i++)
        CHECK(atomic_load(&c.seen[i]) == (i < n));
}

static void copy(size_t n)
{
    char *a = malloc(n), *b = malloc(n);

    for (size_t i = 0; i < n; i++)
        a[i] = (char)(i * 7919 >> 8);
    threads_copy(b, a, n);
    CHECK(!memcmp(a, b, n));
    free(a);
    free(b);
}

static void fail(void *ctx, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        struct err e;

        if (i % 7 == 3 && err_set(&e, E_DATA, "part %zu", i) < 0)
            threads_error_add(ctx, i, &e);
    }
}

int main(void)
{
    struct threads_error t;
    struct err e;

    threads_set(8);
    for (int round = 0; round < 3000; round++) {
        loop((size_t)round % MOST, 1 + (size_t)round % 13);
        if (round % 500 == 0) /* the workers sleep */
            nanosleep(&(struct timespec){ .tv_nsec = 3000000 }, NULL);
    }
    threads_for(40, 1, nested, NULL);
    for (size_t n = 0; n < 300; n++)
        shares(n);
    copy(1);
    copy((3 << 20) + 5);
    threads_error_init(&t);
    threads_for(100, 1, fail, &t);
    CHECK(threads_error_take(&t, &e) == E_DATA);
    CHECK(!strcmp(e.msg, "part 3"));
    return 0;
}
