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
    struct stream_reader *in;
    uint64_t at, len, samples;
    XXH3_state_t *hash;
    float *block;
};

/* The payloads are read, or not wanted. */
static void drop_left(struct merging *m)
{
    for (size_t i = 0; i < m->n_left; i++) {
        XXH3_freeState(m->left[i].hash);
        free(m->left[i].block);
    }
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

int merging_leave(struct merging *m, struct stream_reader *r, uint64_t at,
                  uint64_t len, uint64_t samples, struct err *e)
{
    if (mem_grow(&m->left, (m->n_left + 1) * sizeof(*m->left), "hessians", e) <
        0)
        return e->code;
    m->left[m->n_left++] =
        (struct left){ .in = r, .at = at, .len = len, .samples = samples };
    return 0;
}

/* ---- blocks ---- */

struct work {
    struct merging *m;
    uint64_t at, n; /* of the payloads' numbers, those in the blocks */
    double samples; /* of all; 0: the sums are wanted */
    struct threads_error error;
};

static int open_blocks(struct merging *m, struct err *e)
{
    for (size_t i = 0; i < m->n_left; i++) {
        struct left *p = &m->left[i];

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
        struct left *p = &w->m->left[i];
        size_t n = w->n * sizeof(float);

        if (stream_payload_piece(p->in, p->at, w->at * sizeof(float), p->block,
                                 n, &e) < 0)
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
        for (size_t p = 0; p < m->n_left; p++) {
            const float *x = m->left[p].block + skip + k;
            double times = (double)m->left[p].samples;

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

static int check_hashes(struct merging *m, struct err *e)
{
    for (size_t i = 0; i < m->n_left; i++) {
        struct left *p = &m->left[i];

        if (stream_payload_check(p->in, p->at, XXH3_64bits_digest(p->hash), e) <
            0)
            return e->code;
    }
    return 0;
}

/* Read what is left, and set the mean, or without samples the sums. */
static int read_left(struct merging *m, uint64_t samples, struct err *e)
{
    struct work w = { .m = m, .samples = (double)samples };
    uint64_t all = m->left[0].len / sizeof(float), end = m->first + m->n;
    int rc = open_blocks(m, e);

    threads_error_init(&w.error);
    for (; rc >= 0 && w.at < all; w.at += w.n) {
        uint64_t from, to;

        w.n = all - w.at < NUMBERS ? all - w.at : NUMBERS;
        threads_for(m->n_left, 1, read_blocks, &w);
        rc = threads_error_take(&w.error, e);
        if (rc < 0)
            break;
        threads_error_init(&w.error);
        from = w.at > m->first ? w.at : m->first;
        to = w.at + w.n < end ? w.at + w.n : end;
        if (from < to)
            threads_for(to - from, 1 << 14, add_blocks, &w);
    }
    return rc < 0 ? rc : check_hashes(m, e);
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
    m->mean = mem_pages(m->n * sizeof(*m->mean), "hessians", e);
    *data = m->mean;
    if (!m->mean)
        return e->code;
    if (m->n_left && samples)
        return read_left(m, samples, e);
    if (settle(m, e) < 0)
        return e->code;
    for (uint64_t i = 0; i < m->n; i++)
        m->mean[i] = (float)(m->sum[i] / (double)samples);
    return 0;
}
