/* product.c - y = x W^T, and what follows it while the tile is in cache.
 *
 * Tiles go over threads; a tile of f32 sums is made by oneDNN in the thread's
 * scratch, and is rounded, added or gated from there, so that f32 results
 * never travel through memory. */
#include <pthread.h>

#include "common/onednn.h"
#include "common/threads.h"
#include "model/internal.h"
#include "model/scratch.h"

enum { TILE_ROWS = 256, TILE_COLS = 512 };

struct job {
    const struct product *p;
    int64_t cols, across; /* of a tile; tiles beside each other */
    pthread_mutex_t lock;
    int rc;
    struct err err;
};

/* sums[m, ld] = x[i.., k] * w[o.., k]^T, n columns */
static int multiply(const struct product *p, const struct loaded *l, int64_t i,
                    int64_t m, int64_t o, int64_t n, float *sums, int64_t ld,
                    struct err *e)
{
    int64_t k = l->of.cols;

    if (p->m->bf16)
        return onednn_bf16_nt(m, n, k, (const uint16_t *)p->x + i * k, k,
                              (const uint16_t *)l->w + o * k, sums, ld, e);
    return onednn_f32_nt(m, n, k, (const float *)p->x + i * k, k,
                         (const float *)l->w + o * k, sums, ld, e);
}

static const float *bias_at(const struct loaded *l, int64_t o)
{
    return l->bias ? l->bias + o : NULL;
}

/* Row r of the tile, from column o on, out of its sums. */
static void finish_row(const struct product *p, int64_t r, int64_t o, int64_t n,
                       const float *y, const float *u)
{
    const struct kernels *k = p->m->k;
    const float *b = bias_at(p->first, o);
    int64_t at = r * p->first->of.rows + o;
    uint16_t *h = (uint16_t *)p->out + at;
    float *f = (float *)p->out + at;

    if (p->second && p->m->bf16)
        k->gate_bf16(y, u, b, bias_at(p->second, o), n, h);
    else if (p->second)
        k->gate_f32(y, u, b, bias_at(p->second, o), n, f);
    else if (p->add && p->m->bf16)
        k->add_bf16(y, b, n, h);
    else if (p->add)
        k->add_f32(y, b, n, f);
    else if (p->m->bf16)
        k->store_bf16(y, b, n, h);
    else
        k->store_f32(y, b, n, f);
}

static int run_tile(const struct product *p, int64_t i, int64_t o, int64_t n,
                    struct err *e)
{
    int64_t m = p->rows - i < TILE_ROWS ? p->rows - i : TILE_ROWS;
    int64_t ld = p->second ? 2 * n : n;
    float *y = scratch_thread(sizeof(float) * TILE_ROWS * TILE_COLS, e);

    if (!y)
        return e->code;
    if (multiply(p, p->first, i, model_rows(m), o, n, y, ld, e) < 0)
        return e->code;
    if (p->second &&
        multiply(p, p->second, i, model_rows(m), o, n, y + n, ld, e) < 0)
        return e->code;
    for (int64_t r = 0; r < m; r++)
        finish_row(p, i + r, o, n, y + r * ld, y + r * ld + n);
    return 0;
}

static void run_tiles(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;

    for (size_t t = begin; t < end; t++) {
        int64_t i = (int64_t)t / j->across * TILE_ROWS;
        int64_t o = (int64_t)t % j->across * j->cols;
        int64_t n = j->p->first->of.rows - o;
        struct err e;

        if (run_tile(j->p, i, o, n < j->cols ? n : j->cols, &e) < 0) {
            pthread_mutex_lock(&j->lock);
            j->rc = e.code;
            j->err = e;
            pthread_mutex_unlock(&j->lock);
        }
    }
}

int product_run(const struct product *p, struct err *e)
{
    struct job j = { .p = p };
    int64_t down = (p->rows + TILE_ROWS - 1) / TILE_ROWS;

    j.cols = p->second ? TILE_COLS / 2 : TILE_COLS;
    j.across = (p->first->of.rows + j.cols - 1) / j.cols;
    pthread_mutex_init(&j.lock, NULL);
    threads_for((size_t)(down * j.across), 1, run_tiles, &j);
    pthread_mutex_destroy(&j.lock);
    if (j.rc < 0)
        *e = j.err;
    return j.rc;
}
