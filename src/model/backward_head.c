/* backward_head.c - see backward.h: gradient through the head.
 *
 * With p = softmax(W y), y the final norm's output, and a token t drawn from
 * p, the gradient of -log p_t with respect to y is (Σ_v p_v w_v) - w_t.
 * Logits are computed twice, by blocks of the vocabulary: first for the sum of
 * their exponentials, then for p; t is where the running sum of p exceeds a
 * number drawn from [0, 1). */
#include <math.h>
#include <stdlib.h>

#include "common/math/blas.h"
#include "common/math/threads.h"
#include "model/backward.h"
#include "model/internal.h"

enum { PART = 128, BLOCK = 1024 };

struct head_back {
    int64_t n, h, vocab;
    uint64_t first;
    const uint16_t *w; /* [vocab, h] */
    float *block;      /* [BLOCK, h] of w, as f32 */
    int64_t v0, nv;    /* the block's rows of w */
    bool again;        /* second pass over the vocabulary */
    float *y;          /* [n, h] normalized rows */
    float *most;       /* [n]: largest logit so far */
    double *sum;  /* [n]: Σ exp(logit - most); second pass: running Σ p */
    float *scale; /* [n]: log Σ exp(logit), for the second pass */
    float *g;     /* [n, h] gradient with respect to y */
    struct threads_error error;
};

/* Uniform in [0, 1), by SplitMix64 of a number. */
static double draw(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static void add_exponents(struct head_back *j, int64_t t, const float *logit)
{
    float most = j->most[t];

    for (int64_t v = 0; v < j->nv; v++)
        most = logit[v] > most ? logit[v] : most;
    j->sum[t] *= exp((double)(j->most[t] - most));
    for (int64_t v = 0; v < j->nv; v++)
        j->sum[t] += (double)expf(logit[v] - most);
    j->most[t] = most;
}

/* Replace logits by p, minus 1 for the drawn token. */
static void probabilities(struct head_back *j, int64_t t, float *logit)
{
    double u = draw(j->first + (uint64_t)t);

    for (int64_t v = 0; v < j->nv; v++) {
        double before = j->sum[t];

        logit[v] = expf(logit[v] - j->scale[t]);
        j->sum[t] += (double)logit[v];
        if (before <= u && u < j->sum[t])
            logit[v] -= 1;
    }
}

static void run_parts(void *ctx, size_t begin, size_t end)
{
    struct head_back *j = ctx;
    int h = (int)j->h, nv = (int)j->nv;
    struct err e;
    float *logit = scratch_thread(PART * BLOCK * sizeof(float), &e);

    if (!logit) {
        threads_error_add(&j->error, begin, &e);
        return;
    }
    for (size_t i = begin; i < end; i++) {
        int64_t at = (int64_t)i * PART;
        int n = (int)(j->n - at < PART ? j->n - at : PART);

        blas_sgemm(&(struct sgemm){ .tb = true,
                                    .m = n,
                                    .n = nv,
                                    .k = h,
                                    .a = j->y + at * h,
                                    .b = j->block,
                                    .c = logit });
        for (int k = 0; k < n; k++)
            if (j->again)
                probabilities(j, at + k, logit + (int64_t)k * nv);
            else
                add_exponents(j, at + k, logit + (int64_t)k * nv);
        if (j->again)
            blas_sgemm(&(struct sgemm){ .m = n,
                                        .n = h,
                                        .k = nv,
                                        .a = logit,
                                        .b = j->block,
                                        .beta = 1,
                                        .c = j->g + at * h });
    }
}

static int pass(struct head_back *j, struct err *e)
{
    for (j->v0 = 0; j->v0 < j->vocab; j->v0 += BLOCK) {
        j->nv = j->vocab - j->v0 < BLOCK ? j->vocab - j->v0 : BLOCK;
        if (!to_f32(j->block, j->w + j->v0 * j->h, DT_BF16,
                    (size_t)(j->nv * j->h)))
            return err_set(e, E_BUG, "the head is no float");
        threads_error_init(&j->error);
        threads_for((size_t)((j->n + PART - 1) / PART), 1, run_parts, j);
        if (threads_error_take(&j->error, e) < 0)
            return e->code;
    }
    return 0;
}

static int run(struct head_back *j, struct err *e)
{
    for (int64_t t = 0; t < j->n; t++) {
        j->most[t] = -INFINITY;
        j->sum[t] = 0;
    }
    for (int64_t i = 0; i < j->n * j->h; i++)
        j->g[i] = 0;
    if (pass(j, e) < 0)
        return e->code;
    for (int64_t t = 0; t < j->n; t++) {
        j->scale[t] = j->most[t] + (float)log(j->sum[t]);
        j->sum[t] = 0;
    }
    j->again = true;
    return pass(j, e);
}

static int load(struct model *m, struct head_back *j, uint16_t **w,
                struct err *e)
{
    const char *module = model_head_module(m, e);
    uint64_t rows, cols;
    uint16_t *read;

    if (!module ||
        checkpoint_linear_bf16(m->ck, module, &read, &rows, &cols, e) < 0)
        return e->code;
    *w = read;
    if (rows != (uint64_t)j->vocab || cols != (uint64_t)j->h)
        return err_set(e, E_DATA, "'%s' is not vocab_size by hidden_size",
                       module);
    j->w = *w;
    return 0;
}

/* All work memory at once: y, the block, gy, the norm's rows, and three
 * numbers per row. */
static int back(struct model *m, const void *x, struct head_back *j, float *g,
                const float *norm, struct err *e)
{
    size_t n = (size_t)j->n, rows = n * (size_t)j->h;
    float *room =
        mem_pages((3 * rows + (size_t)(BLOCK * j->h) + 4 * n) * sizeof(float),
                  "gradients", e);
    int rc;

    if (!room)
        return e->code;
    j->sum = (double *)(void *)room;
    j->y = room + 2 * n;
    j->g = j->y + rows;
    j->block = j->g + 2 * rows;
    j->most = j->block + BLOCK * j->h;
    j->scale = j->most + n;
    rc = model_norm(m, x, norm, j->n, j->g + rows,
                    e); /* elements: f32 at most */
    (void)!to_f32(j->y, j->g + rows, m->dtype, rows);
    if (rc >= 0)
        rc = run(j, e);
    for (size_t i = 0; i < rows; i++)
        g[i] = 0;
    if (rc >= 0)
        backward_norm(m, x, norm, j->g, j->n, g);
    free(room);
    return rc;
}

int backward_head(struct model *m, const void *x, int64_t n, uint64_t first,
                  float *g, struct err *e)
{
    const struct model_config *c = &m->config;
    struct head_back j = {
        .n = n, .h = c->hidden_size, .vocab = c->vocab_size, .first = first
    };
    float *norm;
    uint16_t *w = NULL;
    int rc;

    if (blas_open(e) < 0 ||
        model_vector(m, "model.norm.weight", c->hidden_size, &norm, e) < 0)
        return e->code;
    rc = load(m, &j, &w, e);
    if (rc >= 0)
        rc = back(m, x, &j, g, norm, e);
    free(norm);
    free(w);
    return rc;
}
