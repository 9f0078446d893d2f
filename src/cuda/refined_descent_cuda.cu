/* refined_descent_cuda.cu - coordinate descent on the codes and the scale of a
 * group, see gptq/solve/refine.h. */
#include "cuda/refined_internal.cuh"

enum {
    ROWS = REFINED_ROWS,
    SUB = REFINED_SUB,
    WIDE = REFINED_WIDE,
    PARTS = 8, /* threads per row */
    THREADS = ROWS * PARTS
};

struct refine_memory {
    float h[WIDE][WIDE];     /* H of the group */
    float t[WIDE][ROWS];     /* gradients, moves of earlier columns included */
    float a[WIDE][ROWS];     /* code - zero */
    float moved[WIDE][ROWS]; /* the changes of d */
    float num[THREADS], den[THREADS];
    float mantissa[256];
    float scale[ROWS], zero[ROWS];
    uint32_t meta[ROWS];
};

template <enum dtype S>
static __device__ void fetch(struct refine_memory *s,
                             const struct refined_group &g, uint64_t row)
{
    int n = (int)g.n, all = refined_columns(g.n), t = (int)threadIdx.x;

    for (int i = t; i < 256; i += THREADS)
        s->mantissa[i] = g.mantissa[i];
    for (int i = t; i < all * WIDE / 4; i += THREADS) {
        int k = i / (WIDE / 4), j = i % (WIDE / 4) * 4;

        if (k < n)
            refined_copy(&s->h[k][j], g.square + k * WIDE + j);
        else
            *(float4 *)&s->h[k][j] = make_float4(0, 0, 0, 0);
    }
    for (int i = t; i < all * ROWS / 4; i += THREADS) {
        int k = i / (ROWS / 4), r = i % (ROWS / 4) * 4;

        if (k < n)
            refined_copy(&s->t[k][r], g.gradient + k * g.pitch + row + r);
        else
            *(float4 *)&s->t[k][r] = make_float4(0, 0, 0, 0);
    }
    __syncthreads();
    if (t < ROWS) {
        s->meta[t] = g.meta[row + t];
        s->scale[t] = refined_scale<S>(s->mantissa, s->meta[t]);
        s->zero[t] = (float)meta_zero(s->meta[t]);
    }
    __syncthreads();
    for (int i = t; i < all * ROWS; i += THREADS) {
        int k = i / ROWS, r = i % ROWS;

        s->a[k][r] =
            k < n ? (float)g.codes[k * g.pitch + row + r] - s->zero[r] : 0;
    }
    refined_arrived();
}

/* Move the codes of 32 columns of row r, one after another, each to its
 * minimum.  True when one moved. */
static __device__ bool move_sub(struct refine_memory *s, int first, int r)
{
    float scale = s->scale[r], zero = s->zero[r], acc[SUB];
    bool any = false;

#pragma unroll
    for (int k = 0; k < SUB; k++)
        acc[k] = s->t[first + k][r];
#pragma unroll
    for (int k = 0; k < SUB; k++) {
        const float *h = &s->h[first + k][first];
        float a = s->a[first + k][r], x = a, moved;

        if (h[k] > 0) {
            x = __fdiv_rn(acc[k], __fmul_rn(scale, h[k]));
            x = zero + a + fminf(fmaxf(x, -16), 16);
            x = fminf(fmaxf(x, 0), 15);
            x = (x + ROUNDER) - ROUNDER - zero;
        }
        moved = (a - x) * scale;
        any |= x != a;
        s->a[first + k][r] = x;
        s->moved[first + k][r] = moved;
#pragma unroll
        for (int j = 0; j < SUB; j += 4) {
            float4 f;

            if (j + 3 <= k)
                continue;
            f = *(const float4 *)(h + j);
            acc[j] = j > k ? fmaf(moved, f.x, acc[j]) : acc[j];
            acc[j + 1] = j + 1 > k ? fmaf(moved, f.y, acc[j + 1]) : acc[j + 1];
            acc[j + 2] = j + 2 > k ? fmaf(moved, f.z, acc[j + 2]) : acc[j + 2];
            acc[j + 3] = fmaf(moved, f.w, acc[j + 3]);
        }
    }
    return any;
}

/* This thread's part of num = g a and den = a H a, g the gradient after all
 * moves.  With c = H a: num = (gradient before the moves) a + moved c, den = a
 * c. */
static __device__ void moments(struct refine_memory *s,
                               const struct refined_group &g, uint64_t row,
                               int all)
{
    int r = (int)threadIdx.x % ROWS, part = (int)threadIdx.x / ROWS;
    float num = 0, den = 0;

    for (int j = 4 * part; j < all; j += 4 * PARTS) {
        float c[4] = {};

#pragma unroll 8
        for (int k = 0; k < all; k++) {
            float4 h = *(const float4 *)&s->h[k][j];
            float a = s->a[k][r];

            c[0] = fmaf(a, h.x, c[0]);
            c[1] = fmaf(a, h.y, c[1]);
            c[2] = fmaf(a, h.z, c[2]);
            c[3] = fmaf(a, h.w, c[3]);
        }
        for (int i = 0; i < 4; i++) {
            float a = s->a[j + i][r];
            float before =
                j + i < (int)g.n ? g.gradient[(j + i) * g.pitch + row + r] : 0;

            num = fmaf(before, a, fmaf(s->moved[j + i][r], c[i], num));
            den = fmaf(c[i], a, den);
        }
    }
    s->num[threadIdx.x] = num;
    s->den[threadIdx.x] = den;
    __syncthreads();
}

/* As refit() of gptq/solve/refine.c. */
template <enum dtype S>
static __device__ bool refit(struct refine_memory *s, int r)
{
    uint32_t old = s->meta[r], meta;
    float sign = old >> 24 & QUANT_NEGATIVE ? -1 : 1;
    float num = 0, den = 0, now;
    double scale, step;

    for (int i = r; i < THREADS; i += ROWS) {
        num += s->num[i];
        den += s->den[i];
    }
    scale = den > 0 ? sign * (s->scale[r] + (double)num / den) : 0;
    if (!(scale > 0))
        return false;
    meta = refined_meta<S>((float)scale, (int)s->zero[r],
                           old >> 24 & QUANT_SYMMETRIC);
    if (sign < 0)
        meta ^= (uint32_t)QUANT_NEGATIVE << 24;
    now = refined_scale<S>(s->mantissa, meta);
    step = (double)now - s->scale[r];
    if (meta == old || !(step * step * den < 2 * step * num))
        return false;
    s->meta[r] = meta;
    s->scale[r] = now;
    return true;
}

/* Move the codes of a group, then its scale; grid (pitch / 16, matrices).  For 32
 * columns at a time, one thread per row moves the codes; then all threads add the
 * moves to the gradients of later columns.  Shared memory: 92 KiB. */
template <enum dtype S>
static __global__ void __launch_bounds__(THREADS, 2)
    refined_descent_kernel(const struct refined_group all_of)
{
    extern __shared__ float4 memory[];
    const struct refined_group g = refined_of(all_of, blockIdx.y);
    struct refine_memory *s = (struct refine_memory *)memory;
    uint64_t row = (uint64_t)blockIdx.x * ROWS;
    int r = (int)threadIdx.x % ROWS, part = (int)threadIdx.x / ROWS;
    int all = refined_columns(g.n);
    bool any = false;

    fetch<S>(s, g, row);
    for (int first = 0; first < all; first += SUB) {
        if (part == 0)
            any |= move_sub(s, first, r);
        __syncthreads();
        for (int j = first + SUB + SOLVE_PUSH * part; j < all;
             j += SOLVE_PUSH * PARTS)
            refined_push(s->t, s->moved, first, j, r,
                         [&](int k) { return s->h[k]; });
        __syncthreads();
    }
    moments(s, g, row, all);
    if (part == 0)
        any |= refit<S>(s, r);
    if (any)
        *g.any = 1;
    __syncthreads();
    if (part == 0)
        g.meta[row + r] = s->meta[r];
    for (int k = part; k < (int)g.n; k += PARTS) {
        uint64_t at = k * g.pitch + row + r;
        float d = g.w[at] - s->a[k][r] * s->scale[r];

        refined_split(g.moved + 3 * k * g.pitch + row + r, g.pitch,
                      d - g.d[at]);
        refined_split(g.split + 3 * k * g.pitch + row + r, g.pitch, d);
        g.d[at] = d;
        g.codes[at] = (uint8_t)(s->a[k][r] + s->zero[r]);
    }
}

template <enum dtype S>
static int launch(struct cuda_context *c, const struct refined_group *g, int n,
                  struct err *e)
{
    int room = sizeof(struct refine_memory);

    CUDA_TRY(cudaFuncSetAttribute(refined_descent_kernel<S>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  room));
    refined_descent_kernel<S><<<dim3((unsigned)(g->pitch / ROWS), (unsigned)n),
                                THREADS, room, c->stream>>>(*g);
    LAUNCHED();
    return 0;
}

int refined_descend(struct cuda_context *c, enum dtype scale_dtype,
                    const struct refined_group *g, int n, struct err *e)
{
    return scale_dtype == DT_F16 ? launch<DT_F16>(c, g, n, e) :
                                   launch<DT_BF16>(c, g, n, e);
}
