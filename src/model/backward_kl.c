/* backward_kl.c - see backward.h: the gradient of KL(p || q) through the head.
 *
 * Parts of tokens, whose logits of the whole vocabulary are in memory, so that each
 * is computed once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/blas.h"
#include "common/math/rounded.h"
#include "common/math/threads.h"
#include "model/backward.h"
#include "model/backward_parts.h"

enum { LOGITS = 1 << 20, MOST_ROWS = 128 }; /* of a part */

struct kl_head {
    struct model *m;
    float *norm, *w; /* [H], [vocab, H] */
    void *there;     /* on a device: w in bf16; the host has none then */
    /* w and its transpose, where products are rounded, in place of w */
    struct rounded_operand logits, back;
    struct buffer y, ry, gy; /* [n, H] f32 */
    struct buffer normed;    /* the same, elements, on a device */
    double *kl;              /* [kept] of each row */
    int64_t kept;
};

struct job {
    const struct kl_head *k;
    int64_t n, part; /* rows of all, of a part */
    float by;
    struct threads_error error;
};

static int load(struct kl_head *k, struct err *e)
{
    struct model *m = k->m;
    int64_t v = m->config.vocab_size, h = m->config.hidden_size;
    const char *module = model_head_module(m, e);
    uint64_t rows, cols;
    uint16_t *w = NULL;
    int rc;

    if (!module ||
        backward_norm_vector(m, -1, "model.norm", h, &k->norm, e) < 0 ||
        checkpoint_linear_bf16(m->ck, module, &w, &rows, &cols, e) < 0)
        return e->code;
    rc = model_check_shape(module, rows, cols, v, h, e);
    if (rc >= 0 && m->on) {
        k->there = w;
        return model_place(m, &k->there, (size_t)(v * h) * sizeof(*w), e);
    }
    if (rc >= 0)
        k->w = mem_pages((size_t)(v * h) * sizeof(float), "head", e);
    if (rc >= 0)
        rc = k->w ? widen_cpu(NULL, DT_BF16, w, v * h, k->w, e) : e->code;
    free(w);
    if (rc < 0 || !rounded(MOST_ROWS))
        return rc;
    if (rounded_pack(&k->logits, k->w, true, 0, v, h, e) < 0 ||
        rounded_pack(&k->back, k->w, false, 0, h, v, e) < 0)
        return e->code;
    free(k->w);
    k->w = NULL;
    return 0;
}

int kl_head_open(struct model *m, struct kl_head **out, struct err *e)
{
    struct kl_head *k = mem_zero(1, sizeof(*k), "head", e);

    *out = NULL;
    if (!k)
        return e->code;
    k->m = m;
    if (blas_open(e) < 0 || load(k, e) < 0) {
        kl_head_close(k);
        return e->code;
    }
    *out = k;
    return 0;
}

void kl_head_close(struct kl_head *k)
{
    if (!k)
        return;
    model_free(k->m, k->norm);
    if (k->m->on)
        model_free(k->m, k->there);
    free(k->w);
    rounded_release(&k->logits);
    rounded_release(&k->back);
    free(k->kl);
    model_buffer_release(k->m, &k->y);
    model_buffer_release(k->m, &k->ry);
    model_buffer_release(k->m, &k->gy);
    model_buffer_release(k->m, &k->normed);
    free(k);
}

/* Products W y become logits; slope (or NULL): the derivative of each. */
static void squash(const struct model_config *c, float *z, float *slope,
                   int64_t n)
{
    float scale = (float)c->logit_scale, cap = (float)c->logit_cap;

    for (int64_t i = 0; i < n; i++) {
        float t = cap > 0 ? tanhf(scale * z[i] / cap) : 0;

        z[i] = cap > 0 ? cap * t : scale * z[i];
        if (slope)
            slope[i] = scale * (1 - t * t);
    }
}

/* Subtract the logarithm of the sum of the exponentials. */
static void log_softmax(float *z, int64_t n)
{
    float most = z[0];
    double sum = 0;

    for (int64_t i = 1; i < n; i++)
        most = z[i] > most ? z[i] : most;
    for (int64_t i = 0; i < n; i++)
        sum += (double)expf(z[i] - most);
    most += sum > 0 ? (float)log(sum) : 0;
    for (int64_t i = 0; i < n; i++)
        z[i] -= most;
}

/* Of logarithms p and q: KL, and q = by (exp q - exp p), the sum of which is 0: errors of
 * the logarithms' sums cancel in the KL with it. */
static double diverge(const float *p, float *q, float by, int64_t n)
{
    double kl = 0;

    for (int64_t i = 0; i < n; i++) {
        float a = expf(p[i]), d = expf(q[i]) - a;

        kl += (double)(a * (p[i] - q[i]) + d);
        q[i] = by * d;
    }
    return kl;
}

/* y[n, v] = x[n, H] Wᵀ, or back: y[n, H] = x[n, v] W.  room: n times the larger of both
 * elements. */
static void multiply(const struct kl_head *k, bool back, const float *x,
                     int64_t n, uint16_t *room, float *y)
{
    int64_t h = k->m->config.hidden_size, v = k->m->config.vocab_size;

    if (k->w)
        blas_sgemm(&(struct sgemm){ .tb = !back,
                                    .m = n,
                                    .n = back ? h : v,
                                    .k = back ? v : h,
                                    .a = x,
                                    .b = k->w,
                                    .c = y });
    else
        rounded_multiply(back ? &k->back : &k->logits, x, n, room, y, false);
}

static void run_part(const struct job *j, int64_t at, float *p)
{
    const struct kl_head *k = j->k;
    const struct model_config *c = &k->m->config;
    int64_t h = c->hidden_size, v = c->vocab_size;
    int64_t n = j->n - at < j->part ? j->n - at : j->part;
    bool plain = c->logit_scale == 1 && c->logit_cap <= 0;
    float *q = p + n * v, *slope = plain ? NULL : q + n * v;
    uint16_t *room = (uint16_t *)(void *)(p + 3 * n * v);

    multiply(k, false, (float *)k->ry.p + at * h, n, room, p);
    multiply(k, false, (float *)k->y.p + at * h, n, room, q);
    if (!plain) {
        squash(c, p, NULL, n * v);
        squash(c, q, slope, n * v);
    }
    for (int64_t i = 0; i < n; i++) {
        log_softmax(p + i * v, v);
        log_softmax(q + i * v, v);
        k->kl[at + i] = diverge(p + i * v, q + i * v, j->by, v);
    }
    for (int64_t i = 0; slope && i < n * v; i++)
        q[i] *= slope[i];
    multiply(k, true, q, n, room, (float *)k->gy.p + at * h);
}

static void run_parts(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    const struct model_config *c = &j->k->m->config;
    size_t logits = (size_t)(j->part * c->vocab_size);
    size_t rows = (size_t)(j->part * c->hidden_size);
    struct err e;
    float *room = scratch_thread(
        (3 * logits + (rows > logits ? rows : logits)) * sizeof(*room), &e);

    if (!room) {
        threads_error_add(&j->error, begin, &e);
        return;
    }
    for (size_t i = begin; i < end; i++)
        run_part(j, (int64_t)i * j->part, room);
}

static int reserve(struct kl_head *k, int64_t n, struct err *e)
{
    struct buffer *of[] = { &k->y, &k->ry, &k->gy };

    for (size_t i = 0; i < ARRAY_LEN(of); i++)
        if (model_reserve(k->m, of[i], n, k->m->config.hidden_size,
                          sizeof(float), "gradients", e) < 0)
            return e->code;
    if (n > k->kept &&
        mem_grow(&k->kl, (size_t)n * sizeof(*k->kl), "gradients", e) < 0)
        return e->code;
    k->kept = n > k->kept ? n : k->kept;
    return 0;
}

static int run_on_host(struct kl_head *k, const void *ref, const void *x,
                       int64_t n, float by, double *kl, struct err *e)
{
    struct job j = { .k = k, .n = n, .by = by };
    int64_t part = LOGITS / k->m->config.vocab_size;

    j.part = part < 8 ? 8 : part > MOST_ROWS ? MOST_ROWS : part;
    if (model_norm(k->m, x, k->norm, n, k->y.p, e) < 0 ||
        model_norm(k->m, ref, k->norm, n, k->ry.p, e) < 0)
        return e->code;
    threads_error_init(&j.error);
    threads_for((size_t)((n + j.part - 1) / j.part), 1, run_parts, &j);
    if (threads_error_take(&j.error, e) < 0)
        return e->code;
    *kl = 0;
    for (int64_t i = 0; i < n; i++)
        *kl += k->kl[i];
    return 0;
}

/* to[n, H] = norm of x[n, H], widened. */
static int norm_there(struct kl_head *k, const void *x, int64_t n, float *to,
                      struct err *e)
{
    struct model *m = k->m;
    int64_t h = m->config.hidden_size;

    return model_reserve(m, &k->normed, n, h, m->size, "gradients", e) < 0 ||
                   model_norm(m, x, k->norm, n, k->normed.p, e) < 0 ?
               e->code :
               m->back->widen(m->context, m->dtype, k->normed.p, n * h, to, e);
}

static int run_there(struct kl_head *k, const void *ref, const void *x,
                     int64_t n, float by, double *kl, struct err *e)
{
    const struct model_config *c = &k->m->config;
    const struct backward_divergence a = { .rows = n,
                                           .h = c->hidden_size,
                                           .vocab = c->vocab_size,
                                           .w = k->there,
                                           .ref = k->ry.p,
                                           .y = k->y.p,
                                           .by = by,
                                           .scale = (float)c->logit_scale,
                                           .cap = (float)c->logit_cap,
                                           .g = k->gy.p,
                                           .kl = kl,
                                           .rounded = rounded(n) };

    return norm_there(k, ref, n, k->ry.p, e) < 0 ||
                   norm_there(k, x, n, k->y.p, e) < 0 ?
               e->code :
               k->m->back->divergence(k->m->context, &a, e);
}

int kl_head_run(struct kl_head *k, const void *ref, const void *x, int64_t n,
                float by, float *g, double *kl, struct err *e)
{
    if (reserve(k, n, e) < 0 ||
        (k->m->on ? run_there : run_on_host)(k, ref, x, n, by, kl, e) < 0)
        return e->code;
    return backward_stream(k->m, x, k->norm, k->gy.p, n, g, true, e);
}
