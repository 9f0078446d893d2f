/* kernels_template.h - see kernels.h.  The including file defines
 *   W          floats in a vector
 *   NV         vectors beside each other in registers
 *   V_FMA      a * b + c
 *   V_MAX, V_MIN
 *   V_DOT      optional: acc + products of pairs of bf16 in 32-bit lanes
 *   V_BF16     optional: to bf16, to nearest even
 *   KERNELS    name of the struct kernels it defines, and NAME its string
 * after it has chosen the target.  No include guard: it is a template. */
#include <math.h>
#include <string.h>

typedef float vf __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef float lane __attribute__((may_alias)); /* or two bf16 */
typedef uint16_t vh __attribute__((vector_size(W * 2), aligned(2), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* ---- vectors ---- */

INLINE vf v_set(float x)
{
    return (vf){ 0 } + x;
}

INLINE vf v_load(const float *p)
{
    return *(const vf *)(const void *)p;
}

INLINE void v_store(float *p, vf x)
{
    *(vf *)(void *)p = x;
}

/* a where yes is all ones, b where it is zero. */
INLINE vu v_pick(vi yes, vu a, vu b)
{
    return ((vu)yes & a) | (~(vu)yes & b);
}

INLINE vf from_bf16(vh h)
{
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

/* To nearest even; NaN stays NaN. */
INLINE vh to_bf16(vf x)
{
#ifdef V_BF16
    return V_BF16(x);
#else
    vu u = (vu)x;
    vu r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;

    r = v_pick(x == x, r, (u >> 16) | 0x40);
    return __builtin_convertvector(r, vh);
#endif
}

INLINE vf round_bf16(vf x)
{
    return from_bf16(to_bf16(x));
}

/* n elements (n <= W) at p; missing ones are zero. */
INLINE vf load_some(const void *p, bool bf16, int64_t n)
{
    if (bf16) {
        vh h = { 0 };

        if (n == W)
            h = *(const vh *)p;
        else
            memcpy(&h, p, (size_t)n * 2);
        return from_bf16(h);
    } else {
        vf f = { 0 };

        if (n == W)
            return v_load(p);
        memcpy(&f, p, (size_t)n * 4);
        return f;
    }
}

INLINE void store_some(void *p, bool bf16, int64_t n, vf x)
{
    if (bf16) {
        vh h = to_bf16(x);

        if (n == W)
            *(vh *)p = h;
        else
            memcpy(p, &h, (size_t)n * 2);
    } else if (n == W) {
        v_store(p, x);
    } else {
        memcpy(p, &x, (size_t)n * 4);
    }
}

/* Element i of the result is element i ^ n of x. */
INLINE vf v_swap(vf x, int n)
{
    vi at = { 0 };

#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
        at[i] = i ^ n;
    return __builtin_shuffle(x, at);
}

INLINE float v_sum(vf x)
{
#pragma GCC unroll 4
    for (int n = W / 2; n; n /= 2)
        x += v_swap(x, n);
    return x[0];
}

INLINE float v_largest(vf x)
{
#pragma GCC unroll 4
    for (int n = W / 2; n; n /= 2)
        x = V_MAX(x, v_swap(x, n));
    return x[0];
}

/* e^x to 2 ulp: 2^n e^r, |r| <= ln2 / 2; 0 below -87, finite above 88. */
INLINE vf v_exp(vf x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds */
    vf y = V_MIN(x, v_set(88.0f));
    vf n = V_FMA(y, v_set(1.44269504f), v_set(magic)) - magic;
    vf r = V_FMA(n, v_set(-0.693359375f), y);
    vf p = v_set(1.9875691500e-4f);

    r = V_FMA(n, v_set(2.12194440e-4f), r);
    p = V_FMA(p, r, v_set(1.3981999507e-3f));
    p = V_FMA(p, r, v_set(8.3334519073e-3f));
    p = V_FMA(p, r, v_set(4.1665795894e-2f));
    p = V_FMA(p, r, v_set(1.6666665459e-1f));
    p = V_FMA(p, r, v_set(5.0000001201e-1f));
    p = V_FMA(p, r * r, r) + 1.0f;
    p = (vf)((vi)p + (__builtin_convertvector(n, vi) << 23));
    return (vf)((vu)p & (vu)(x >= -87.0f));
}

INLINE int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

INLINE const void *element(const void *p, bool bf16, int64_t i)
{
    return (const char *)p + i * (bf16 ? 2 : 4);
}

/* ---- norms ---- */

INLINE void norm(const void *x, bool bf16, const float *w, int64_t n, float eps,
                 void *out, bool out_bf16)
{
    vf sum = { 0 }, scale;

    for (int64_t i = 0; i < n; i += W) {
        vf t = load_some(element(x, bf16, i), bf16, least(W, n - i));

        sum = V_FMA(t, t, sum);
    }
    scale = v_set(1.0f / sqrtf(v_sum(sum) / (float)n + eps));
    for (int64_t i = 0; i < n; i += W) {
        int64_t k = least(W, n - i);
        vf t = load_some(element(x, bf16, i), bf16, k) * scale;

        if (bf16)
            t = round_bf16(t);
        t *= load_some(w + i, false, k);
        if (bf16 && !out_bf16)
            t = round_bf16(t);
        store_some((char *)out + i * (out_bf16 ? 2 : 4), out_bf16, k, t);
    }
}

static void norm_f32(const float *x, const float *w, int64_t n, float eps,
                     float *out)
{
    norm(x, false, w, n, eps, out, false);
}

static void norm_bf16(const uint16_t *x, const float *w, int64_t n, float eps,
                      uint16_t *out)
{
    norm(x, true, w, n, eps, out, true);
}

/* ---- ends of products ---- */

INLINE vf biased(const float *y, const float *bias, int64_t i, int64_t k)
{
    vf t = load_some(y + i, false, k);

    if (bias)
        t += load_some(bias + i, false, k);
    return t;
}

static void store_f32(const float *y, const float *bias, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i += W)
        store_some(out + i, false, least(W, n - i),
                   biased(y, bias, i, least(W, n - i)));
}

static void store_bf16(const float *y, const float *bias, int64_t n,
                       uint16_t *out)
{
    for (int64_t i = 0; i < n; i += W)
        store_some(out + i, true, least(W, n - i),
                   biased(y, bias, i, least(W, n - i)));
}

static void add_f32(const float *y, const float *bias, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i += W) {
        int64_t k = least(W, n - i);
        vf t = biased(y, bias, i, k) + load_some(out + i, false, k);

        store_some(out + i, false, k, t);
    }
}

static void add_bf16(const float *y, const float *bias, int64_t n,
                     uint16_t *out)
{
    for (int64_t i = 0; i < n; i += W) {
        int64_t k = least(W, n - i);
        vf t = round_bf16(biased(y, bias, i, k));

        store_some(out + i, true, k, t + load_some(out + i, true, k));
    }
}

INLINE vf silu(vf x)
{
    return x / (v_exp(-x) + 1.0f);
}

static void gate_f32(const float *g, const float *u, const float *gb,
                     const float *ub, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i += W) {
        int64_t k = least(W, n - i);

        store_some(out + i, false, k,
                   silu(biased(g, gb, i, k)) * biased(u, ub, i, k));
    }
}

static void gate_bf16(const float *g, const float *u, const float *gb,
                      const float *ub, int64_t n, uint16_t *out)
{
    for (int64_t i = 0; i < n; i += W) {
        int64_t k = least(W, n - i);
        vf a = round_bf16(silu(round_bf16(biased(g, gb, i, k))));

        store_some(out + i, true, k, a * round_bf16(biased(u, ub, i, k)));
    }
}

/* x * 0 is 0, or NaN for what is not finite: then no sum is 0 any more. */
INLINE bool all_finite(const void *x, bool bf16, int64_t n)
{
    vf sum = { 0 };

    for (int64_t i = 0; i < n; i += W)
        sum += load_some(element(x, bf16, i), bf16, least(W, n - i)) * 0;
    return v_sum(sum) == 0;
}

static bool finite_f32(const float *x, int64_t n)
{
    return all_finite(x, false, n);
}

static bool finite_bf16(const uint16_t *x, int64_t n)
{
    return all_finite(x, true, n);
}

/* ---- rope ---- */

INLINE void turn_half(const struct turn *t, const float *cs, float *x)
{
    int64_t half = t->dim / 2;

    for (int64_t i = 0; i < half; i += W) {
        int64_t k = least(W, half - i);
        vf a = load_some(x + i, false, k);
        vf b = load_some(x + half + i, false, k);
        vf c = load_some(cs + i, false, k);
        vf s = load_some(cs + half + i, false, k);
        vf ra = a * c - b * s, rb = b * c + a * s;

        store_some(x + i, false, k, t->bf16 ? round_bf16(ra) : ra);
        store_some(x + half + i, false, k, t->bf16 ? round_bf16(rb) : rb);
    }
}

static void turn_row(const struct turn *t, const void *src, const float *cs,
                     float *out)
{
    if (t->norm)
        norm(src, t->bf16, t->norm, t->dim, t->eps, out, false);
    else
        for (int64_t i = 0; i < t->dim; i += W) {
            int64_t k = least(W, t->dim - i);

            store_some(out + i, false, k,
                       load_some(element(src, t->bf16, i), t->bf16, k));
        }
    turn_half(t, cs, out);
}

/* ---- attention ----
 *
 * `pairs`: keys, values, queries and weights are bf16, two of the summed index
 * in a lane, which V_DOT multiplies and adds; then there are half as many
 * steps, and all else is the same. */

INLINE vf multiply_add(vf a, vf b, vf acc, const bool pairs)
{
#ifdef V_DOT
    if (pairs)
        return V_DOT(acc, a, b);
#endif
    (void)pairs;
    return V_FMA(a, b, acc);
}

/* acc[r][c] += sum over t < steps of a[r][t] * b[t][c], n vectors wide. */
INLINE void tile(const lane *a, int64_t lda, const lane *b, int64_t ldb,
                 int64_t steps, vf acc[ATTEND_ROWS][NV], const int n,
                 const bool pairs)
{
    for (int64_t t = 0; t < steps; t++) {
        vf row[NV];

#pragma GCC unroll 4
        for (int c = 0; c < n; c++)
            row[c] = v_load(b + t * ldb + c * W);
#pragma GCC unroll 6
        for (int r = 0; r < ATTEND_ROWS; r++) {
            vf x = v_set(a[r * lda + t]);

#pragma GCC unroll 4
            for (int c = 0; c < n; c++)
                acc[r][c] = multiply_add(x, row[c], acc[r][c], pairs);
        }
    }
}

/* s[ATTEND_ROWS][ATTEND_KEYS] = q k of one block of keys. */
INLINE void scores(const lane *q, const lane *k, int64_t lanes, float *s,
                   const bool pairs)
{
    for (int64_t j = 0; j < ATTEND_KEYS; j += W * NV) {
        vf acc[ATTEND_ROWS][NV] = { 0 };

        tile(q, lanes, k + j, ATTEND_KEYS, lanes, acc, NV, pairs);
#pragma GCC unroll 6
        for (int r = 0; r < ATTEND_ROWS; r++)
#pragma GCC unroll 4
            for (int c = 0; c < NV; c++)
                v_store(s + r * ATTEND_KEYS + j + c * W, acc[r][c]);
    }
}

/* out[ATTEND_ROWS][n vectors] += p v; p has `keys` lanes a row. */
INLINE void values(const lane *p, int64_t keys, const lane *v, int64_t padded,
                   float *out, const int n, const bool pairs)
{
    vf acc[ATTEND_ROWS][NV];

#pragma GCC unroll 6
    for (int r = 0; r < ATTEND_ROWS; r++)
#pragma GCC unroll 4
        for (int c = 0; c < n; c++)
            acc[r][c] = v_load(out + r * padded + c * W);
    tile(p, keys, v, padded, keys, acc, n, pairs);
#pragma GCC unroll 6
    for (int r = 0; r < ATTEND_ROWS; r++)
#pragma GCC unroll 4
        for (int c = 0; c < n; c++)
            v_store(out + r * padded + c * W, acc[r][c]);
}

static const float HIDDEN = -1e30f; /* a score that the mask forbids */

/* Scores outside the keys that position p sees become HIDDEN. */
INLINE void mask(const struct attend *a, int64_t p, int64_t k0, float *s)
{
    int64_t lo = a->window ? p - a->window + 1 - k0 : 0, hi = p + 1 - k0;

    for (int64_t j = 0; j < least(lo, ATTEND_KEYS); j++)
        s[j] = HIDDEN;
    for (int64_t j = hi > 0 ? hi : 0; j < ATTEND_KEYS; j++)
        s[j] = HIDDEN;
}

/* One row: scores to weights p = exp(score - largest so far).  A row that has seen only
 * hidden keys has weights of 1; they vanish when its first real key comes,
 * and it always comes: its own, in the last block. */
INLINE void soften(const struct attend *a, float *s, void *p, float *largest,
                   vf *sum, float *out, const bool pairs)
{
    vf m = v_set(HIDDEN), total = { 0 };
    float before = *largest, shrink;

    for (int64_t j = 0; j < ATTEND_KEYS; j += W) {
        vf t = v_load(s + j) * a->scale;

        m = V_MAX(m, t);
        v_store(s + j, t);
    }
    *largest = fmaxf(before, v_largest(m));
    for (int64_t j = 0; j < ATTEND_KEYS; j += W) {
        vf t = v_exp(v_load(s + j) - *largest);

        total += t;
        store_some((char *)p + j * (pairs ? 2 : 4), pairs, W, t);
    }
    if (before == *largest) {
        *sum += total;
        return;
    }
    shrink = v_exp(v_set(before - *largest))[0];
    *sum = *sum * shrink + total;
    for (int64_t i = 0; i < a->padded; i += W)
        v_store(out + i, v_load(out + i) * shrink);
}

/* All queries of the block against keys k0 .. k0 + ATTEND_KEYS - 1. */
INLINE void attend_block(const struct attend *a, int64_t k0, float *largest,
                         vf *sum, const bool pairs)
{
    int64_t lanes = pairs ? a->dim / 2 : a->dim;
    int64_t keys = pairs ? ATTEND_KEYS / 2 : ATTEND_KEYS;
    const lane *q = a->q, *k = a->k, *v = a->v;
    float s[ATTEND_ROWS * ATTEND_KEYS], p[ATTEND_ROWS * ATTEND_KEYS];

    k += k0 * lanes;
    v += k0 / ATTEND_KEYS * keys * a->padded;
    for (int64_t i = 0; i < a->n; i += ATTEND_ROWS) {
        float *out = a->out + i * a->padded;
        int64_t c = 0;

        scores(q + i * lanes, k, lanes, s, pairs);
        for (int64_t r = 0; r < ATTEND_ROWS; r++) {
            mask(a, a->first + i + r, k0, s + r * ATTEND_KEYS);
            soften(a, s + r * ATTEND_KEYS, p + r * keys, largest + i + r,
                   sum + i + r, out + r * a->padded, pairs);
        }
        for (; c + W * NV <= a->padded; c += W * NV)
            values(p, keys, v + c, a->padded, out + c, NV, pairs);
        for (; c < a->padded; c += W)
            values(p, keys, v + c, a->padded, out + c, 1, pairs);
    }
}

INLINE void attend_blocks(const struct attend *a, const bool pairs)
{
    float largest[ATTEND_QUERIES];
    vf sum[ATTEND_QUERIES];
    int64_t last = a->first + a->n - 1, k0 = 0;

    if (a->window && a->first >= a->window)
        k0 = (a->first - a->window + 1) / ATTEND_KEYS * ATTEND_KEYS;
    for (int i = 0; i < ATTEND_QUERIES; i++) {
        largest[i] = HIDDEN;
        sum[i] = v_set(0);
    }
    memset(a->out, 0, (size_t)(ATTEND_QUERIES * a->padded) * sizeof(*a->out));
    for (; k0 <= last; k0 += ATTEND_KEYS)
        attend_block(a, k0, largest, sum, pairs);
    for (int64_t i = 0; i < a->n; i++) {
        float *o = a->out + i * a->padded, all = v_sum(sum[i]);

        for (int64_t c = 0; c < a->padded; c += W)
            v_store(o + c, v_load(o + c) / all);
    }
}

static void attend(const struct attend *a)
{
    attend_blocks(a, false);
}

#ifdef V_DOT
static void attend_pairs(const struct attend *a)
{
    attend_blocks(a, true);
}
#endif

const struct kernels KERNELS = {
    .name = NAME,
    .norm_f32 = norm_f32,
    .norm_bf16 = norm_bf16,
    .store_f32 = store_f32,
    .store_bf16 = store_bf16,
    .add_f32 = add_f32,
    .add_bf16 = add_bf16,
    .gate_f32 = gate_f32,
    .gate_bf16 = gate_bf16,
    .finite_f32 = finite_f32,
    .finite_bf16 = finite_bf16,
    .turn_row = turn_row,
    .attend = attend,
#ifdef V_DOT
    .attend_pairs = attend_pairs,
#endif
};
