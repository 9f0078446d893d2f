/* round.c - see round.h.
 *
 * A row's piece of one group is widened to f32, spanned and rounded while it is in
 * the first-level cache.  Vectors of sixteen lanes, whatever the width of a register;
 * the quotient is clamped before it is rounded, which gives the same code, by adding
 * 1.5 * 2^23, which rounds half to even. */
#include "pack/round.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/cpu.h"
#include "common/math/lanes.h"
#include "common/math/quant.h"
#include "common/math/threads.h"

#define ROUNDER  12582912.0f
#define F16_MOST 65504.0

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
    vf x, lo = zero - (float)g.zero, hi = lo + 15;
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
    const char *w;
    uint32_t *meta;
    uint8_t *codes;
    struct threads_error error; /* by row */
};

static int not_finite(uint64_t row, uint64_t first, const float *w,
                      struct err *e)
{
    while (isfinite(*w))
        w++, first++;
    return err_set(e, E_DATA,
                   "row %" PRIu64 ": input %" PRIu64 " is not finite", row,
                   first);
}

/* E_CONFIG: the group's grid is beyond F16. */
static int check_reach(const struct round_params *p, struct span s,
                       uint64_t row, uint64_t g, struct err *e)
{
    double lo = (double)s.lo, hi = (double)s.hi;
    double most = p->symmetric ? 2 * fmax(-lo, hi) / 15 : (hi - lo) / 15;

    if (p->scale_dtype != DT_F16 || most <= F16_MOST)
        return 0;
    return err_set(e, E_CONFIG,
                   "row %" PRIu64 ": the weights of group %" PRIu64
                   " are so large that they need a scale of %g, and F16 ends "
                   "at %g: leave the module out, or take --scale-dtype bf16",
                   row, g, most, F16_MOST);
}

/* x, code: [cols of the row, and N more]. */
static int round_row(const struct job *j, uint64_t row, float *x, uint8_t *code,
                     struct err *e)
{
    const struct round_params *p = j->p;
    size_t item = dtype_bits(p->dtype) / 8;
    uint64_t groups = quant_groups(p->cols, p->group);

    for (uint64_t g = 0; g < groups; g++) {
        uint64_t first = g * p->group, left = p->cols - first;
        size_t n = left < p->group ? left : p->group;
        size_t room = (n + N - 1) / N * N;
        uint32_t *meta = &j->meta[row * groups + g];
        struct span s;

        if (!to_f32(x, j->w + (row * p->cols + first) * item, p->dtype, n))
            return err_set(e, E_DATA, "%s is no float type",
                           dtype_name(p->dtype));
        memset(x + n, 0, (room - n) * sizeof(*x));
        if (!lanes_finite(x, n))
            return not_finite(row, first, x, e);
        s = j->k.span(x, room);
        if (check_reach(p, s, row, g, e) < 0)
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
