/* round.c - see round.h.
 *
 * A row's piece of one group is widened to f32, spanned and rounded while it is in
 * the first-level cache; the quotient is clamped before it is rounded, which gives
 * the same code, by adding 1.5 * 2^23, which rounds half to even. */
#include "pack/round.h"

#include <stdlib.h>
#include <string.h>

#include "common/math/cpu.h"
#include "common/math/quant.h"
#include "common/math/row.h"
#include "common/math/threads.h"

#define ROUNDER 12582912.0f

enum { N = 16 /* weights are padded to a multiple */ };

struct span {
    float lo, hi; /* least weight or 0, greatest or 0 */
};

struct kernel {
    struct span (*span)(const float *w, size_t n);
    void (*codes)(uint8_t *codes, const float *w, size_t n, struct qgrid g);
};

#define W       4
#define NAME(x) x##_plain
#define TARGET
#include "pack/round.inc"

#ifdef __x86_64__
#define W       8
#define NAME(x) x##_avx2
#define TARGET  __attribute__((target("avx2")))
#include "pack/round.inc"

#define W       16
#define NAME(x) x##_avx512
#define TARGET  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#include "pack/round.inc"
#endif

static struct kernel kernel_best(void)
{
#ifdef __x86_64__
    if (cpu_uses(CPU_AVX512))
        return (struct kernel){ span_avx512, codes_avx512 };
    if (cpu_uses(CPU_AVX2))
        return (struct kernel){ span_avx2, codes_avx2 };
#endif
    return (struct kernel){ span_plain, codes_plain };
}

struct job {
    const struct round_params *p;
    struct kernel k;
    const void *w;
    uint32_t *meta;
    uint8_t *codes;
    struct threads_error error; /* by row */
};

/* x, code: [cols of the row, and N more]. */
static int round_row(const struct job *j, uint64_t row, float *x, uint8_t *code,
                     struct err *e)
{
    const struct round_params *p = j->p;
    uint64_t groups = quant_groups(p->cols, p->group);

    for (uint64_t g = 0; g < groups; g++) {
        uint64_t first = g * p->group, left = p->cols - first;
        size_t n = left < p->group ? left : p->group;
        size_t room = (n + N - 1) / N * N;
        uint32_t *meta = &j->meta[row * groups + g];
        struct span s;

        if (row_load(x, j->w, p->dtype, p->cols, row, first, n, e) < 0)
            return e->code;
        memset(x + n, 0, (room - n) * sizeof(*x));
        s = j->k.span(x, room);
        if (p->scale_dtype == DT_F16 &&
            quant_check_f16(
                quant_span_scale((double)s.lo, (double)s.hi, p->symmetric, 4),
                row, g, e) < 0)
            return e->code;
        *meta = quant_span(s.lo, s.hi, p->symmetric, 4, p->scale_dtype);
        j->k.codes(code + first, x, room, quant_grid(*meta, p->scale_dtype));
    }
    quant_pack_row(j->codes + row * (p->cols / 2), code, p->cols, 4);
    return 0;
}

static void round_rows(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    const struct round_params *p = j->p;
    size_t piece = p->group < p->cols ? p->group : p->cols;
    struct err e;
    float *x = mem_alloc((piece + N) * sizeof(*x) + p->cols + N, "rtn", &e);
    int rc = x ? 0 : e.code;
    size_t r = begin;

    while (!rc && r < end &&
           !(rc = round_row(j, r, x, (uint8_t *)(x + piece + N), &e)))
        r++;
    if (rc < 0)
        threads_error_add(&j->error, r, &e);
    free(x);
}

int round_absmax(const struct round_params *p, const void *w, uint32_t *meta,
                 uint8_t *codes, struct err *e)
{
    struct job j = {
        .p = p, .k = kernel_best(), .w = w, .meta = meta, .codes = codes
    };

    threads_error_init(&j.error);
    threads_for(p->rows, 8, round_rows, &j);
    return threads_error_take(&j.error, e) < 0 ?
               err_prefix(e, "'%s'", p->name) :
               0;
}
