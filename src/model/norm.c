/* norm.c - see internal.h: norms of rows. */
#include "common/math/threads.h"
#include "model/internal.h"

int norm_ones(int64_t n, float **w, struct err *e)
{
    *w = mem_alloc((size_t)n * sizeof(**w), "norms", e);
    for (int64_t k = 0; *w && k < n; k++)
        (*w)[k] = 1;
    return *w ? 0 : e->code;
}

struct norm_job {
    const struct model *m;
    const struct norm *norm;
};

static void norm_rows(void *ctx, size_t begin, size_t end)
{
    const struct norm_job *j = ctx;
    const struct norm *n = j->norm;
    const struct kernels *k = j->m->k;

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++)
        if (j->m->bf16)
            k->norm_bf16((const uint16_t *)n->x + r * n->ld, n->w, n->n, n->eps,
                         (uint16_t *)n->out + r * n->n);
        else
            k->norm_f32((const float *)n->x + r * n->ld, n->w, n->n, n->eps,
                        (float *)n->out + r * n->n);
}

int model_norm_rows(const struct model *m, const struct norm *n, struct err *e)
{
    struct norm_job j = { .m = m, .norm = n };

    if (m->on)
        return device_norm(m, n, e);
    threads_for((size_t)n->rows, 32, norm_rows, &j);
    return 0;
}

int model_norm(const struct model *m, const void *x, const float *w, int64_t n,
               void *out, struct err *e)
{
    int64_t h = m->config.hidden_size;
    struct norm j = { .x = x,
                      .rows = n,
                      .n = h,
                      .ld = h,
                      .w = w,
                      .eps = (float)m->config.rms_eps,
                      .out = out };

    return model_norm_rows(m, &j, e);
}
