/* merging.c - see merging.h. */
#include "hessian/merging.h"

#include <stdlib.h>
#include <string.h>

#include "common/io/hash.h"
#include "common/math/threads.h"

/* Bytes of a block of one payload: those of all inputs, and the sums, stay in the
 * caches. */
enum { BLOCK = 512 << 10, NUMBERS = BLOCK / sizeof(float) };

struct left {
    struct merging_part of;
    XXH3_state_t *hash;
    float *block;
};

static void close_block(struct left *p)
{
    XXH3_freeState(p->hash);
    free(p->block);
    p->hash = NULL;
    p->block = NULL;
}

/* The payloads are read, or not wanted. */
static void drop_left(struct merging *m)
{
    for (size_t i = 0; i < m->n_left; i++)
        close_block(&m->left[i]);
    m->n_left = 0;
}

void merging_release(struct merging *m)
{
    drop_left(m);
    free(m->left);
    free(m->sum);
    free(m->mean);
    *m = (struct merging){ 0 };
}

/* In the order of their first numbers, those of the same as they come. */
int merging_leave(struct merging *m, const struct merging_part *p,
                  struct err *e)
{
    size_t i = m->n_left;

    if (mem_grow(&m->left, (m->n_left + 1) * sizeof(*m->left), "hessians", e) <
        0)
        return e->code;
    for (; i > 0 && m->left[i - 1].of.start > p->start; i--)
        m->left[i] = m->left[i - 1];
    m->left[i] = (struct left){ .of = *p };
    m->n_left++;
    return 0;
}

/* ---- blocks ---- */

/* Payloads of the same numbers. */
struct work {
    struct merging *m;
    struct left *left;
    size_t n_left;
    uint64_t at, n; /* of all numbers, those in the blocks */
    double samples; /* of all; 0: the sums are wanted */
    struct threads_error error;
};

static int open_blocks(struct work *w, struct err *e)
{
    for (size_t i = 0; i < w->n_left; i++) {
        struct left *p = &w->left[i];

        p->hash = XXH3_createState();
        p->block = mem_pages(BLOCK, "hessians", e);
        if (!p->hash)
            return err_set(e, E_TEMP, "hessians: out of memory");
        if (!p->block)
            return e->code;
        XXH3_64bits_reset(p->hash);
    }
    return 0;
}

static void read_blocks(void *ctx, size_t begin, size_t end)
{
    struct work *w = ctx;
    struct err e;

    for (size_t i = begin; i < end; i++) {
        struct left *p = &w->left[i];
        size_t n = w->n * sizeof(float);

        if (stream_payload_piece(p->of.in, p->of.at,
                                 (w->at - p->of.start) * sizeof(float),
                                 p->block, n, &e) < 0)
            threads_error_add(&w->error, i, &e);
        else
            XXH3_64bits_update(p->hash, p->block, n);
    }
}

/* Numbers begin..end-1 of the mean, which are in the blocks. */
static void add_blocks(void *ctx, size_t begin, size_t end)
{
    const struct work *w = ctx;
    const struct merging *m = w->m;
    uint64_t offset = w->at > m->first ? w->at - m->first : 0;
    uint64_t skip = w->at > m->first ? 0 : m->first - w->at;
    double sum[512];

    for (size_t k = begin; k < end; k += ARRAY_LEN(sum)) {
        size_t n = end - k < ARRAY_LEN(sum) ? end - k : ARRAY_LEN(sum);

        for (size_t i = 0; i < n; i++)
            sum[i] = m->sum ? m->sum[offset + k + i] : 0;
        for (size_t p = 0; p < w->n_left; p++) {
            const float *x = w->left[p].block + skip + k;
            double times = (double)w->left[p].of.samples;

            for (size_t i = 0; i < n; i++)
                sum[i] += times * x[i];
        }
        for (size_t i = 0; i < n; i++)
            if (w->samples > 0)
                m->mean[offset + k + i] = (float)(sum[i] / w->samples);
            else
                m->sum[offset + k + i] = sum[i];
    }
}

static int check_hashes(struct work *w, struct err *e)
{
    for (size_t i = 0; i < w->n_left; i++) {
        struct left *p = &w->left[i];

        if (stream_payload_check(p->of.in, p->of.at,
                                 XXH3_64bits_digest(p->hash), e) < 0)
            return e->code;
        close_block(p);
    }
    return 0;
}

/* Read payloads of the same numbers. */
static int read_group(struct work *w, struct err *e)
{
    struct merging *m = w->m;
    const struct merging_part *of = &w->left[0].of;
    uint64_t all = of->start + of->len / sizeof(float), end = m->first + m->n;
    int rc = open_blocks(w, e);

    threads_error_init(&w->error);
    for (w->at = of->start; rc >= 0 && w->at < all; w->at += w->n) {
        uint64_t from, to;

        w->n = all - w->at < NUMBERS ? all - w->at : NUMBERS;
        threads_for(w->n_left, 1, read_blocks, w);
        rc = threads_error_take(&w->error, e);
        if (rc < 0)
            break;
        threads_error_init(&w->error);
        from = w->at > m->first ? w->at : m->first;
        to = w->at + w->n < end ? w->at + w->n : end;
        if (from < to)
            threads_for(to - from, 1 << 14, add_blocks, w);
    }
    return rc < 0 ? rc : check_hashes(w, e);
}

/* ---- groups ---- */

/* How many payloads from number i on have the same numbers. */
static size_t group_at(const struct merging *m, size_t i)
{
    const struct merging_part *first = &m->left[i].of;
    size_t n = 1;

    while (i + n < m->n_left && m->left[i + n].of.start == first->start &&
           m->left[i + n].of.len == first->len)
        n++;
    return n;
}

/* Whether each wanted number has all samples, once. */
static bool is_whole(const struct merging *m, uint64_t samples)
{
    uint64_t at = m->first, end = m->first + m->n;

    for (size_t i = 0, n; i < m->n_left; i += n) {
        const struct merging_part *p = &m->left[i].of;
        uint64_t next = p->start + p->len / sizeof(float), sum = 0;

        n = group_at(m, i);
        for (size_t k = i; k < i + n; k++)
            sum += m->left[k].of.samples;
        if (sum != samples || (at < end && p->start > at) ||
            (i && p->start < m->left[i - 1].of.start +
                                 m->left[i - 1].of.len / sizeof(float)))
            return false;
        at = next > at ? next : at;
    }
    return at >= end;
}

struct reading {
    struct merging *m;
    uint64_t samples;
    struct threads_error error;
};

static void read_groups(void *ctx, size_t begin, size_t end)
{
    struct reading *r = ctx;

    for (size_t i = begin, n; i < end; i += n) {
        struct work w = { .m = r->m,
                          .left = r->m->left + i,
                          .samples = (double)r->samples };
        struct err e;

        w.n_left = n = group_at(r->m, i);
        if (read_group(&w, &e) < 0)
            threads_error_add(&r->error, i, &e);
    }
}

/* Read what is left, and set the mean, or without samples the sums. */
static int read_left(struct merging *m, uint64_t samples, struct err *e)
{
    struct reading r = { .m = m, .samples = samples };
    bool alone = true;

    for (size_t i = 0; i < m->n_left && alone; i++)
        alone = group_at(m, i) == 1;
    threads_error_init(&r.error);
    if (alone)
        threads_for(m->n_left, 1, read_groups, &r);
    else
        read_groups(&r, 0, m->n_left);
    return threads_error_take(&r.error, e);
}

/* ---- sums ---- */

/* Read what is left into the sums. */
static int settle(struct merging *m, struct err *e)
{
    int rc = 0;

    if (!m->sum)
        m->sum = mem_zero(m->n, sizeof(*m->sum), "hessians", e);
    if (!m->sum)
        return e->code;
    if (m->n_left)
        rc = read_left(m, 0, e);
    drop_left(m);
    return rc;
}

int merging_add(struct merging *m, const float *data, uint64_t samples,
                struct err *e)
{
    double times = (double)samples;

    if (settle(m, e) < 0)
        return e->code;
    for (uint64_t i = 0; samples && i < m->n; i++)
        m->sum[i] += times * data[m->first + i];
    return 0;
}

int merging_mean(struct merging *m, uint64_t samples, const float **data,
                 struct err *e)
{
    bool files = m->n_left && !m->sum && samples;

    if (files && !is_whole(m, samples)) /* before room for what a name says */
        return err_set(e, E_DATA, "numbers are missing");
    m->mean = mem_pages(m->n * sizeof(*m->mean), "hessians", e);
    *data = m->mean;
    if (!m->mean)
        return e->code;
    if (files)
        return read_left(m, samples, e);
    if (settle(m, e) < 0)
        return e->code;
    for (uint64_t i = 0; i < m->n; i++)
        m->mean[i] = (float)(m->sum[i] / (double)samples);
    return 0;
}
