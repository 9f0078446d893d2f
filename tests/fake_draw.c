/* fake_draw.c - logits of the fake plug-in, and draws from them: forge-generate's own. */
#include <math.h>
#include <stdlib.h>

#include "common/math/blas.h"
#include "fake_model.h"

int fake_sums(struct cuda_context *c, const struct forward_sums *a,
              struct err *e)
{
    struct model m = host_model(a->dtype);

    (void)c;
    if (fake_must_own(a->x, bytes_of(a->dtype, a->rows, a->depth), "sums", e) <
            0 ||
        fake_must_own(a->w, 1, "sums", e) < 0 || blas_open(e) < 0)
        return e->code;
    if (fake_owned(a->y, 1))
        return err_set(e, E_BUG, "fake: sums: not memory of the host");
    return a->weights == DT_F32 ? fake_router_sums(a, e) :
                                  product_sums(&m, a, e);
}

static int32_t draw_row(const struct forward_draw *a, float *p, double uniform)
{
    int64_t vocab = a->of.n;
    float most = -INFINITY;
    double sum = 0, left;
    int32_t id = 0;

    if (a->cap > 0)
        kernels_best()->cap(p, a->scale, a->cap, vocab);
    for (int64_t v = 0; a->cap <= 0 && v < vocab; v++)
        p[v] *= a->scale;
    for (int64_t i = 0; i < a->bans; i++)
        if (a->banned[i] < vocab)
            p[a->banned[i]] = -INFINITY;
    for (int64_t v = 0; v < vocab; v++)
        most = p[v] > most ? p[v] : most;
    for (int64_t v = 0; v < vocab; v++)
        sum += (double)(p[v] = expf(p[v] - most));
    left = uniform * sum;
    for (int64_t v = 0; v < vocab && left >= 0; v++) {
        if (p[v] > 0)
            id = (int32_t)v;
        left -= (double)p[v];
    }
    return id;
}

int fake_draw(struct cuda_context *c, const struct forward_draw *a,
              struct err *e)
{
    struct forward_sums s = a->of;
    int rc;

    s.ld = s.n;
    s.y = mem_alloc((size_t)(s.rows * s.n) * sizeof(float), "fake", e);
    if (!s.y)
        return e->code;
    rc = fake_sums(c, &s, e);
    for (int64_t i = 0; i < s.rows && rc >= 0; i++)
        a->ids[i] = draw_row(a, s.y + i * s.n, a->uniform[i]);
    free(s.y);
    return rc;
}
