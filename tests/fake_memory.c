/* fake_memory.c - memory of the fake plug-in: the host's, but other memory than the
 * tool knows.
 *
 * FAKE_CUDA_ROOM: bytes of the device; beyond it memory spills, or ends.
 * FAKE_CUDA_SPILL: all spills that may, and there is no room when it is asked for
 * again.
 * FAKE_CUDA_FAIL: the number of the operation that fails, from 1; FAKE_CUDA_KILL: in
 * which the process is killed. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/base.h"
#include "fake_cuda.h"

/* What is allocated. */
static struct block {
    _Alignas(64) struct block *next;
    size_t n;
    bool spilled;
} * blocks;
static size_t used;
/* The list's: a thread that writes hidden states looks into it. */
static pthread_mutex_t list = PTHREAD_MUTEX_INITIALIZER;

size_t fake_limit(const struct cuda_context *c)
{
    const char *room = getenv("FAKE_CUDA_ROOM");

    if (c->memory)
        return c->memory;
    return room ? strtoull(room, NULL, 10) : (size_t)1 << 34;
}

int fake_operation(const char *what, struct err *e)
{
    static int count;
    const char *fail = getenv("FAKE_CUDA_FAIL");
    const char *die = getenv("FAKE_CUDA_KILL");

    count++;
    if (die && count == atoi(die))
        raise(SIGKILL);
    if (fail && count == atoi(fail))
        return err_set(e, E_DEVICE, "fake: %s failed", what);
    return 0;
}

static int take(void **p, size_t n, bool spilled, struct err *e)
{
    size_t bytes = sizeof(struct block) + n;
    struct block *b = mem_pages(bytes, "fake", e);

    if (!b)
        return e->code;
    memset(b, 0xa5, bytes);
    pthread_mutex_lock(&list);
    *b = (struct block){ blocks, n, spilled };
    blocks = b;
    pthread_mutex_unlock(&list);
    used += spilled ? 0 : n;
    if (spilled)
        fake_note("spill", 1, n, 1);
    *p = b + 1;
    return 0;
}

int fake_alloc(struct cuda_context *c, void **p, size_t n, bool spill,
               bool *spilled, struct err *e)
{
    *p = NULL;
    *spilled = n > fake_limit(c) || used > fake_limit(c) - n ||
               (spill && getenv("FAKE_CUDA_SPILL"));
    if (*spilled && !spill)
        return err_set(e, E_TEMP, "fake: out of memory");
    return take(p, n, *spilled, e);
}

int fake_pinned(struct cuda_context *c, void **p, size_t n, struct err *e)
{
    int rc;

    (void)c;
    *p = NULL;
    rc = take(p, n, true, e);
    if (rc >= 0)
        memset(*p, 0, n);
    return rc;
}

void fake_release(struct cuda_context *c, void *p)
{
    struct block **at = &blocks, *b;

    (void)c;
    if (!p)
        return;
    b = (struct block *)p - 1;
    pthread_mutex_lock(&list);
    while (*at != b) /* what is not there crashes, as it should */
        at = &(*at)->next;
    *at = b->next;
    pthread_mutex_unlock(&list);
    used -= b->spilled ? 0 : b->n;
    free(b);
}

int fake_room(struct cuda_context *c, size_t *n, struct err *e)
{
    static bool asked;

    (void)e;
    *n = used < fake_limit(c) ? fake_limit(c) - used : 0;
    if (asked && getenv("FAKE_CUDA_SPILL"))
        *n = 0;
    asked = true;
    return 0;
}

bool fake_owned(const void *p, size_t n)
{
    bool found = false;

    pthread_mutex_lock(&list);
    for (const struct block *b = blocks; b && !found; b = b->next) {
        const char *first = (const char *)(b + 1);

        found = (const char *)p >= first && (const char *)p + n <= first + b->n;
    }
    pthread_mutex_unlock(&list);
    return !n || found || fake_is_block(p, n);
}

int fake_must_own(const void *p, size_t n, const char *what, struct err *e)
{
    return fake_owned(p, n) ?
               fake_operation(what, e) :
               err_set(e, E_BUG, "fake: %s: not memory of the device", what);
}

static int move(void *to, const void *from, const void *mine, size_t n,
                const char *what, struct err *e)
{
    int rc = fake_must_own(mine, n, what, e);

    if (rc >= 0 && n)
        memmove(to, from, n);
    return rc;
}

int fake_put(struct cuda_context *c, void *to, const void *host, size_t n,
             struct err *e)
{
    (void)c;
    if (n && fake_owned(host, 1))
        return err_set(e, E_BUG, "fake: put: not memory of the host");
    return move(to, host, to, n, "put", e);
}

int fake_get(struct cuda_context *c, void *host, const void *from, size_t n,
             struct err *e)
{
    (void)c;
    if (n && fake_owned(host, 1))
        return err_set(e, E_BUG, "fake: get: not memory of the host");
    return move(host, from, from, n, "get", e);
}

int fake_copy(struct cuda_context *c, void *to, const void *from, size_t n,
              struct err *e)
{
    (void)c;
    if (fake_must_own(from, n, "copy", e) < 0)
        return e->code;
    return move(to, from, to, n, "copy", e);
}

int fake_copy_rows(struct cuda_context *c, void *to, size_t to_row,
                   const void *from, size_t from_row, size_t n, int64_t rows,
                   struct err *e)
{
    int rc = 0;

    for (int64_t i = 0; i < rows && rc >= 0; i++)
        rc = fake_copy(c, (char *)to + (size_t)i * to_row,
                       (const char *)from + (size_t)i * from_row, n, e);
    return rc;
}

int fake_zero(struct cuda_context *c, void *to, size_t n, struct err *e)
{
    int rc = fake_must_own(to, n, "zero", e);

    (void)c;
    if (rc >= 0)
        memset(to, 0, n);
    return rc;
}
