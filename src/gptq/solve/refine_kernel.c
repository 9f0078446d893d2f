/* refine_kernel.c - see refine_kernel.h.
 *
 * Written in vectors of sixteen floats that the compiler maps to one AVX-512,
 * two AVX or four SSE registers; IEEE operations in the same order without
 * contraction, so that all variants move the same codes. */
#include "gptq/solve/refine_kernel.h"

#include <string.h>

#include "common/math/cpu.h"
#include "gptq/solve/solve_kernel.h"

#define INLINE static inline __attribute__((always_inline))
/* x + ROUNDER - ROUNDER rounds x to an integer, half to even (1.5 * 2^23) */
#define ROUNDER 12582912.0f

enum { LANES = 16, COLS = FACTOR_PANEL, ROWS = SOLVE_ROWS };

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint8_t vb __attribute__((vector_size(16)));

#define SELECT(mask, yes, no)                                                  \
    ((vf)(((mask) & (vi)(yes)) | (~(mask) & (vi)(no))))

/* Input c of 16 rows from r on.  t: its gradient.  *moved: the change of d. */
INLINE void move(const struct refine_panel *p, int c, int r, const vf *t,
                 vf *moved, vf *change, vi *any)
{
    float curve = p->h[c * COLS + c];
    vf w, s, z, d, x, code, none = { 0 };
    vb b;

    memcpy(&w, p->w + c * ROWS + r, sizeof(w));
    memcpy(&d, p->d + c * ROWS + r, sizeof(d));
    memcpy(&s, p->scale + r, sizeof(s));
    memcpy(&z, p->zero + r, sizeof(z));
    memcpy(&b, p->codes + c * ROWS + r, sizeof(b));
    code = __builtin_convertvector(__builtin_convertvector(b, vi), vf);
    if (curve > 0) {
        vf top = none + p->top, most = top + 1.0f;

        x = *t / (s * curve); /* steps of the grid to move by; clamped below */
        x = SELECT(x < -most, -most, x);
        x = SELECT(x > most, most, x);
        x = code + x;
        x = SELECT(x < none, none, x);
        x = SELECT(x > top, top, x);
        x = (x + ROUNDER) - ROUNDER;
    } else {
        x = code;
    }
    *any |= x != code;
    w -= (x - z) * s;
    *moved = SELECT(x != code, w - d, none);
    *change += *moved * (*t + *t + *moved * curve);
    d = SELECT(x != code, w, d);
    b = __builtin_convertvector(__builtin_convertvector(x, vi), vb);
    memcpy(p->d + c * ROWS + r, &d, sizeof(d));
    memcpy(p->codes + c * ROWS + r, &b, sizeof(b));
    memcpy(p->moved + c * ROWS + r, moved, sizeof(*moved));
}

INLINE bool refine_panel(const struct refine_panel *p)
{
    enum { N = ROWS / LANES };
    vf moved[COLS][N], change[N];
    vi any = { 0 };
    bool moves = false;

    memcpy(change, p->change, sizeof(change));
    for (int c = 0; c < COLS; c++) {
        vf t[N];

        memcpy(t, p->acc + c * ROWS, sizeof(t));
        for (int k = 0; k < c; k++)
#pragma GCC unroll 3
            for (int i = 0; i < N; i++)
                t[i] += moved[k][i] * p->h[k * COLS + c];
#pragma GCC unroll 3
        for (int i = 0; i < N; i++)
            move(p, c, i * LANES, &t[i], &moved[c][i], &change[i], &any);
    }
    memcpy(p->change, change, sizeof(change));
    for (int i = 0; i < LANES; i++)
        moves |= any[i] != 0;
    return moves;
}

static bool refine_plain(const struct refine_panel *p)
{
    return refine_panel(p);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static bool
refine_avx2(const struct refine_panel *p)
{
    return refine_panel(p);
}

__attribute__((target("avx512f,avx512dq,avx512bw"))) static bool
refine_avx512(const struct refine_panel *p)
{
    return refine_panel(p);
}
#endif

refine_fn *refine_kernel_best(void)
{
#ifdef __x86_64__
    if (cpu_uses(CPU_AVX512))
        return refine_avx512;
    if (cpu_uses(CPU_AVX2))
        return refine_avx2;
#endif
    return refine_plain;
}
