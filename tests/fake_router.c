/* fake_router.c - the router of the fake plug-in's forward pass, and the rows of its
 * experts: the CPU's. */
#include <stdlib.h>
#include <string.h>

#include "common/math/blas.h"
#include "fake_cuda.h"
#include "model/expert_rows.h"
#include "model/internal.h"

static size_t item(enum dtype t)
{
    return t == DT_BF16 ? 2 : 4;
}

int fake_router_sums(const struct forward_sums *a, struct err *e)
{
    enum { PART = 256 };
    float *x = mem_pages((size_t)(PART * a->depth) * 4, "fake", e);
    int rc = x ? 0 : e->code;

    for (int64_t i = 0; rc >= 0 && i < a->rows; i += PART) {
        int64_t n = a->rows - i < PART ? a->rows - i : PART;

        (void)!to_f32(
            x, (const char *)a->x + (size_t)(i * a->depth) * item(a->dtype),
            a->dtype, (size_t)(n * a->depth));
        rc = blas_f32_nt(
            &(struct sgemm){ .m = n,
                             .n = a->n,
                             .k = a->depth,
                             .a = x,
                             .b = (const float *)a->w + a->first * a->depth,
                             .c = a->y + i * a->ld,
                             .ldc = a->ld },
            e);
    }
    free(x);
    return rc;
}

int fake_route(struct cuda_context *c, const struct forward_route *a,
               struct err *e)
{
    int64_t n = a->moe.n_experts;
    size_t vector = (size_t)n * 4;
    float *score = mem_zero(2 * (size_t)a->rows + 1, vector, "fake", e);
    struct forward_sums s = { .dtype = a->dtype,
                              .weights = DT_F32,
                              .rows = a->rows,
                              .all = n,
                              .depth = a->depth,
                              .n = n,
                              .x = a->x,
                              .w = a->w,
                              .y = score,
                              .ld = n };
    int rc = score ? 0 : e->code;

    (void)c;
    if (rc >= 0 &&
        (fake_must_own(a->x, (size_t)(a->rows * a->depth) * item(a->dtype),
                       "route", e) < 0 ||
         fake_must_own(a->w, (size_t)a->depth * vector, "route", e) < 0 ||
         fake_must_own(a->shift, a->shift ? vector : 0, "route", e) < 0 ||
         fake_must_own(a->bias, a->bias ? vector : 0, "route", e) < 0 ||
         blas_open(e) < 0 || fake_router_sums(&s, e) < 0))
        rc = e->code;
    if (rc >= 0 && (fake_owned(a->experts, 1) || fake_owned(a->mass, 1)))
        rc = err_set(e, E_BUG, "fake: route: not memory of the host");
    if (rc >= 0)
        route_rows(a, score, score + a->rows * n);
    free(score);
    return rc;
}

/* ---- experts ---- */

int fake_gather(struct cuda_context *c, const struct forward_rows *r, void *to,
                const void *from, struct err *e)
{
    size_t row = (size_t)r->n * item(r->dtype);

    (void)c;
    if (fake_must_own(to, (size_t)r->rows * row, "gather", e) < 0 ||
        fake_must_own(r->slot, (size_t)r->rows * 8, "gather", e) < 0)
        return e->code;
    for (int64_t i = 0; i < r->rows; i++) {
        const char *at =
            (const char *)from + (size_t)(r->slot[i] / r->top_k) * row;

        if (!fake_owned(at, row))
            return err_set(e, E_BUG, "fake: gather: no such row");
        memcpy((char *)to + (size_t)i * row, at, row);
        if (r->by)
            multiply_row(r->dtype, (char *)to + (size_t)i * row, r->n,
                         r->by[r->slot[i]]);
    }
    return 0;
}

int fake_scatter(struct cuda_context *c, const struct forward_rows *r,
                 float *sum, const float *weight, const void *out,
                 double *squares, struct err *e)
{
    float *y;

    (void)c;
    if (fake_must_own(squares, (size_t)r->rows * 8, "scatter", e) < 0)
        return e->code;
    y = mem_pages((size_t)r->n * 4, "fake", e);
    if (!y)
        return e->code;
    for (int64_t i = 0; i < r->rows; i++) {
        float *to = sum ? sum + r->slot[i] / r->top_k * r->n : NULL;

        (void)!to_f32(y,
                      (const char *)out + (size_t)(i * r->n) * item(r->dtype),
                      r->dtype, (size_t)r->n);
        squares[i] = 0;
        for (int64_t k = 0; k < r->n; k++) {
            squares[i] += (double)y[k] * (double)y[k];
            if (to)
                to[k] += weight[r->slot[i]] * y[k];
        }
    }
    free(y);
    return 0;
}
