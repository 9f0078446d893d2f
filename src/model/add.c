/* add.c - see internal.h: sums of rows and multiples of others. */
#include "common/math/threads.h"
#include "model/internal.h"

enum { PART = 256 }; /* numbers at a time */

void model_add_row(const struct model *m, float factor, int64_t n,
                   const void *y, void *x)
{
    float t[PART];

    for (int64_t i = 0; i < n; i += PART) {
        int64_t k = n - i < PART ? n - i : PART;

        if (!to_f32(t, (const char *)y + (size_t)i * m->size, m->dtype,
                    (size_t)k))
            return; /* not with a float's dtype */
        for (int64_t c = 0; c < k; c++)
            t[c] *= factor;
        if (m->bf16)
            m->k->add_bf16(t, NULL, k, (uint16_t *)x + i);
        else
            m->k->add_f32(t, NULL, k, (float *)x + i);
    }
}

struct add_job {
    const struct model *m;
    const struct forward_add_times *a;
};

static void add_rows(void *ctx, size_t begin, size_t end)
{
    const struct add_job *j = ctx;
    const struct forward_add_times *a = j->a;

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++)
        model_add_row(j->m, a->factor, a->n,
                      (const char *)a->y + (size_t)(r * a->n) * j->m->size,
                      state_at(a->x, a->dtype, r * a->ld));
}

int model_add_times(const struct model *m, const struct forward_add_times *a,
                    struct err *e)
{
    struct add_job j = { m, a };

    if (m->on)
        return m->on->add_times(m->context, a, e);
    threads_for((size_t)a->rows, 8, add_rows, &j);
    return 0;
}
