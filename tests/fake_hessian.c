/* fake_hessian.c - the fake plug-in's Hessians and cross moments: plain sums over their
 * tokens.  See fake_cuda.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "hessian/cross.h"
#include "hessian/hessian_table.h"

struct cuda_hessian {
    uint64_t cols, tokens;
    uint16_t *x;
};

/* ---- Hessians ---- */

static void sum(const uint16_t *x, uint64_t tokens, uint64_t cols, float *h)
{
    for (uint64_t i = 0; i < cols; i++)
        for (uint64_t j = 0; j <= i; j++) {
            double s = 0;

            for (uint64_t t = 0; t < tokens; t++)
                s += (double)f32_from_bf16(x[t * cols + i]) *
                     (double)f32_from_bf16(x[t * cols + j]);
            *h++ = tokens ? (float)(2 * s / (double)tokens) : 0;
        }
}

static int hessian_open_fake(struct cuda_hessian **h, struct cuda_context *c,
                             const struct hessian_shape *s, struct err *e)
{
    (void)c;
    *h = NULL;
    if (s->block || s->dtype != DT_BF16)
        return err_set(e, E_CONFIG, "fake: whole matrices of bf16 alone");
    *h = calloc(1, sizeof(**h));
    (*h)->cols = s->cols;
    return 0;
}

/* Where it is said to be. */
static int is_where(const void *p, size_t n, bool there, struct err *e)
{
    return fake_is_block(p, n) == there ?
               0 :
               err_set(e, E_BUG, "fake: memory is not where it is said to be");
}

/* An element of row t times its root; root NULL: as it is. */
static uint16_t weigh(uint16_t x, const float *root, uint64_t t)
{
    return root ? bf16_from_f32(f32_from_bf16(x) * root[t]) : x;
}

static int hessian_add_fake(struct cuda_hessian *h, const void *x,
                            uint64_t tokens, bool there, const float *root,
                            struct err *e)
{
    if (is_where(x, tokens * h->cols * 2, there, e) < 0)
        return e->code;
    if (root)
        fake_note("weigh", there, tokens, h->cols);
    h->x = realloc(h->x, (h->tokens + tokens) * h->cols * 2 + 1);
    for (uint64_t i = 0; i < tokens * h->cols; i++)
        h->x[h->tokens * h->cols + i] =
            weigh(((const uint16_t *)x)[i], root, i / h->cols);
    h->tokens += tokens;
    return 0;
}

static int hessian_finish_fake(struct cuda_hessian *h, float *out, bool there,
                               struct err *e)
{
    if (is_where(out, h->cols * (h->cols + 1) * 2, there, e) < 0)
        return e->code;
    fake_note("hessian", 1, h->tokens, h->cols);
    sum(h->x, h->tokens, h->cols, out);
    return 0;
}

static void hessian_close_fake(struct cuda_hessian *h)
{
    if (h)
        free(h->x);
    free(h);
}

/* ---- cross moments ---- */

struct cuda_cross {
    struct cross_shape shape;
    double *sum;
};

static int cross_open_fake(struct cuda_cross **x, struct cuda_context *c,
                           const struct cross_shape *s, struct err *e)
{
    (void)c;
    *x = calloc(1, sizeof(**x));
    if (!*x || !((*x)->sum = calloc(s->rows * s->cols, sizeof(double))))
        return err_set(e, E_TEMP, "fake");
    (*x)->shape = *s;
    return 0;
}

static int cross_add_fake(struct cuda_cross *x, const void *y, const void *from,
                          uint64_t tokens, bool there, const float *root,
                          struct err *e)
{
    const uint16_t *a = y, *b = from;
    uint64_t rows = x->shape.rows, cols = x->shape.cols;

    if (is_where(y, tokens * rows * 2, there, e) < 0 ||
        is_where(from, tokens * cols * 2, there, e) < 0)
        return e->code;
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t i = 0; i < rows; i++)
            for (uint64_t j = 0; j < cols; j++)
                x->sum[i * cols + j] +=
                    (double)f32_from_bf16(weigh(a[t * rows + i], root, t)) *
                    (double)f32_from_bf16(weigh(b[t * cols + j], root, t));
    return 0;
}

static int cross_finish_fake(struct cuda_cross *x, double factor, float *out,
                             bool there, struct err *e)
{
    if (is_where(out, x->shape.rows * x->shape.cols * 4, there, e) < 0)
        return e->code;
    fake_note("cross", 1, x->shape.rows, x->shape.cols);
    for (uint64_t i = 0; i < x->shape.rows * x->shape.cols; i++)
        out[i] = (float)(factor * x->sum[i]);
    return 0;
}

static void cross_close_fake(struct cuda_cross *x)
{
    if (x)
        free(x->sum);
    free(x);
}

static int hessians_fake(struct cuda_context *c, uint64_t cols,
                         const struct cuda_tokens *t, int n, struct err *e)
{
    (void)c;
    fake_note("hessians", n, 0, cols);
    for (int i = 0; i < n; i++) {
        if (is_where(t[i].x, t[i].tokens * cols * 2, t[i].x_there, e) < 0 ||
            is_where(t[i].h, cols * (cols + 1) * 2, t[i].h_there, e) < 0)
            return e->code;
        if (t[i].x_there)
            fake_wait("hessians");
        sum(t[i].x, t[i].tokens, cols, t[i].h);
    }
    return 0;
}

static int blend_fake(struct cuda_context *c, float *h, const float *prior,
                      uint64_t cols, double own, float more, struct err *e)
{
    uint64_t n = cols * (cols + 1) / 2;

    (void)c;
    fake_note("blend", prior != NULL, cols, cols);
    if (is_where(h, n * sizeof(*h), true, e) < 0 ||
        (prior && is_where(prior, n * sizeof(*h), true, e) < 0))
        return e->code;
    for (uint64_t i = 0; i < n; i++)
        h[i] = (float)(prior ? own * h[i] + (1 - own) * prior[i] : own * h[i]);
    for (uint64_t i = 0; !prior && i < cols; i++)
        h[i * (i + 3) / 2] += more;
    return 0;
}

static int put_fake(struct cuda_context *c, void *to, const void *from,
                    size_t n, struct err *e)
{
    (void)c;
    if (is_where(to, n, true, e) < 0)
        return e->code;
    memcpy(to, from, n);
    return 0;
}

static int finite_fake(struct cuda_context *c, enum dtype t, const void *x,
                       uint64_t n, uint64_t *first, struct err *e)
{
    float y;

    (void)c;
    *first = 0;
    fake_wait("finite");
    if (is_where(x, n * dtype_bits(t) / 8, true, e) < 0)
        return e->code;
    for (; *first < n; ++*first) {
        (void)!to_f32(&y, (const char *)x + *first * dtype_bits(t) / 8, t, 1);
        if (!isfinite(y))
            break;
    }
    return 0;
}

static int diagonal_fake(struct cuda_context *c, const float *h, uint64_t cols,
                         float *d, struct err *e)
{
    (void)c;
    for (uint64_t i = 0; i < cols; i++)
        d[i] = h[i * (i + 3) / 2];
    return is_where(h, cols * (cols + 1) * 2, true, e);
}

/* ---- the table ---- */

__attribute__((visibility("default")))
const struct hessian_table forge_hessian_table = {
    .version = HESSIAN_TABLE_VERSION,
    .open = hessian_open_fake,
    .add = hessian_add_fake,
    .finish = hessian_finish_fake,
    .close = hessian_close_fake,
    .cross_open = cross_open_fake,
    .cross_add = cross_add_fake,
    .cross_finish = cross_finish_fake,
    .cross_close = cross_close_fake,
    .batch = hessians_fake,
    .finite = finite_fake,
    .diagonal = diagonal_fake,
    .blend = blend_fake,
    .put = put_fake,
};
