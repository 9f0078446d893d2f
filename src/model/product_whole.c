/* product_whole.c - see internal.h: products that are finished when all of their f32 sums
 * are there: those of up to W4_FEW rows of x with 4-bit weights, which are read once, by all
 * threads (forge_w4a16.h), and those of f32 rounded to bf16 (rounded.h). */
#include <stdlib.h>

#include "common/math/rounded.h"
#include "common/math/threads.h"
#include "model/internal.h"
#include "model/scratch.h"
#include "w4a16/w4a16.h"

enum {
    FINISHED = 4096 /* outputs of a row that a thread finishes at a time */
};

/* Sums of first and second, of all rows; u NULL: there is no second. */
struct sums {
    const struct product *p;
    float *y, *u;   /* [rows, outputs] */
    int64_t across; /* pieces of a row */
};

static void finish(void *ctx, size_t begin, size_t end)
{
    const struct sums *s = ctx;
    int64_t n = s->p->first->of.rows;

    for (int64_t i = (int64_t)begin; i < (int64_t)end; i++) {
        int64_t r = i / s->across, o = i % s->across * FINISHED;

        product_finish(s->p, r, o, n - o < FINISHED ? n - o : FINISHED,
                       s->y + r * n + o, s->u ? s->u + r * n + o : NULL);
    }
}

static void finish_all(const struct product *p, float *y, float *u)
{
    int64_t across = (p->first->of.rows + FINISHED - 1) / FINISHED;
    struct sums s = { p, y, u, across };

    threads_for((size_t)(p->rows * across), 1, finish, &s);
}

int product_few(const struct product *p, int n, struct err *e)
{
    const struct forge_w4a16 *w[2 * PRODUCTS_MOST];
    struct forge_w4a16_rows y[2 * PRODUCTS_MOST];
    const struct forge_w4a16_rows x = { (enum forge_w4a16_type)p->m->dtype,
                                        (void *)(uintptr_t)p->x,
                                        p->first->of.cols };
    int64_t outputs = 0, each;
    int linears = 0;
    float *sums;

    for (int i = 0; i < n; i++)
        outputs += p[i].first->of.rows * (p[i].second ? 2 : 1);
    sums = scratch_thread((size_t)(p->rows * outputs) * sizeof(*sums), e);
    if (!sums)
        return e->code;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < (p[i].second ? 2 : 1); k++, linears++) {
            each = p[i].first->of.rows;
            w[linears] = (k ? p[i].second : p[i].first)->q;
            y[linears] =
                (struct forge_w4a16_rows){ FORGE_W4A16_F32, sums, each };
            sums += p->rows * each;
        }
    if (w4_several(w, linears, &x, p->rows, y, e) < 0)
        return e->code;
    linears = 0;
    for (int i = 0; i < n; i++) {
        float *first = y[linears++].p;

        finish_all(p + i, first, p[i].second ? y[linears++].p : NULL);
    }
    return 0;
}

int product_rounded(const struct product *p, struct err *e)
{
    int64_t n = p->first->of.rows;
    size_t each = (size_t)(p->rows * n);
    float *y =
        mem_pages((p->second ? 2 : 1) * each * sizeof(*y), "products", e);
    float *u = y && p->second ? y + each : NULL;
    int rc = 0;

    if (!y)
        return e->code;
    for (int i = 0; i < (p->second ? 2 : 1) && rc >= 0; i++)
        rc = rounded_gemm(&(struct sgemm){ .tb = true,
                                           .m = p->rows,
                                           .n = n,
                                           .k = p->first->of.cols,
                                           .a = p->x,
                                           .b = (i ? p->second : p->first)->w,
                                           .c = i ? u : y },
                          e);
    if (rc >= 0)
        finish_all(p, y, u);
    free(y);
    return rc;
}
