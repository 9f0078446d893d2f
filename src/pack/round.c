/* round.c - see round.h.
 *
 * A row's piece of one group is widened to f32, spanned and rounded while it is in
 * the first-level cache.  Vectors of sixteen lanes, whatever the width of a register;
 * the quotient is clamped before it is rounded, which gives the same code, by adding
 * 1.5 * 2^23, which rounds half to even. */
#include "pack/round.h"

#include <stdlib.h>
#include <string.h>

#include "common/math/cpu.h"
#include "common/math/quant.h"
#include "common/math/row.h"
#include "common/math/threads.h"

#define ROUNDER 12582912.0f

enum { N = 16 };
typedef float vf __attribute__((vector_size(4 * N)));
typedef int32_t vi __attribute__((vector_size(4 * N)));
typedef uint8_t vb __attribute__((vector_size(N)));

/* a where the mask is set, else b; casts keep bits. */
#define PICK(mask, a, b) (vf)(((vi)(a) & (mask)) | ((vi)(b) & ~(mask)))

struct span {
    float lo, hi; /* least weight or 0, greatest or 0 */
};

/* n: a multiple of N. */
static inline __attribute__((always_inline)) struct span span_of(const float *w,
                                                                 size_t n)
{
    vf x, lo = { 0 }, hi = { 0 };
    struct span s = { 0, 0 };

    for (size_t i = 0; i < n; i += N) {
        memcpy(&x, w + i, sizeof(x));
        lo = PICK(x < lo, x, lo);
        hi = PICK(x > hi, x, hi);
    }
    for (int i = 0; i < N; i++) {
        s.lo = lo[i] < s.lo ? lo[i] : s.lo;
        s.hi = hi[i] > s.hi ? hi[i] : s.hi;
    }
    return s;
}

static inline __attribute__((always_inline)) void
codes_of(uint8_t *codes, const float *w, size_t n, struct qgrid g)
{
    const vf zero = { 0 };
    vf x, lo = zero - (float)g.zero, hi = lo + (float)g.top;
    vi base;

    x = zero + ROUNDER;
    memcpy(&base, &x, sizeof(base));
    base -= g.zero;
    for (size_t i = 0; i < n; i += N) {
        vi t;
        vb c;

        memcpy(&x, w + i, sizeof(x));
        x /= g.scale;
        x = PICK(x < lo, lo, x);
        x = PICK(x > hi, hi, x);
        x += ROUNDER;
        memcpy(&t, &x, sizeof(t));
        c = __builtin_convertvector(t - base, vb);
        memcpy(codes + i, &c, sizeof(c));
    }
}

struct kernel {
    struct span (*span)(const float *w, size_t n);
    void (*codes)(uint8_t *codes, const float *w, size_t n, struct qgrid g);
};

static struct span span_plain(const float *w, size_t n)
{
    return span_of(w, n);
}

static void codes_plain(uint8_t *codes, const float *w, size_t n,
                        struct qgrid g)
{
    codes_of(codes, w, n, g);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static struct span span_avx2(const float *w,
                                                             size_t n)
{
    return span_of(w, n);
}

__attribute__((target("avx2"))) static void
codes_avx2(uint8_t *codes, const float *w, size_t n, struct qgrid g)
{
    codes_of(codes, w, n, g);
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) static struct span
span_avx512(const float *w, size_t n)
{
    return span_of(w, n);
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) static void
codes_avx512(uint8_t *codes, const float *w, size_t n, struct qgrid g)
{
    codes_of(codes, w, n, g);
}
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
