/* refined_group_cuda.cu - chooses the grid of a group when GPTQ reaches it
 * (gptq/solve/block_grid.h): a candidate's cost comes from solving the whole
 * group on it. */
#include "cuda/refined_internal.cuh"

enum {
    ROWS = REFINED_ROWS,
    SUB = REFINED_SUB,
    WIDE = REFINED_WIDE,
    PARTS = 12, /* threads per row, at most; each solves a pair of candidates
                   at a time */
    THREADS = ROWS * PARTS,
    WORDS = WIDE / 8, /* of eight codes */
    TRIANGLE = SUB * SUB * (WIDE / SUB) * (WIDE / SUB + 1) / 2
};

struct group_memory {
    float l[TRIANGLE]; /* L of the group, see row_at() */
    float w[WIDE][ROWS], pushed[WIDE][ROWS];
    float x[WIDE][ROWS];               /* w - w', then scratch */
    uint32_t codes[WORDS][2][THREADS]; /* of the current pair */
    uint32_t best[WORDS][THREADS];     /* of each thread's best candidate */
    float diagonal[WIDE], inverse[WIDE];
    float mantissa[256];
    float cost[THREADS];
    uint32_t meta[THREADS];
    int index[THREADS];
    float lo[ROWS], hi[ROWS], scale[ROWS], zero[ROWS];
    int winner[ROWS]; /* the thread with the row's best candidate */
};

/* Offset of row k of L, stored up to the end of its diagonal block of 32
 * columns: 32, 64, 96 or 128 elements. */
static __device__ __forceinline__ int row_at(int k)
{
    int i = k / SUB;

    return i * (i + 1) * (SUB * SUB / 2) + k % SUB * (SUB * (i + 1));
}

/* Load the group and its triangle of L.  Columns beyond the group's are set so
 * that they give no feedback and have no cost. */
static __device__ void fetch(struct group_memory *s,
                             const struct refined_group &g, uint64_t row)
{
    int n = (int)g.n, all = refined_columns(g.n);
    int threads = (int)blockDim.x, t = (int)threadIdx.x;

    for (int i = t; i < all * WIDE / 4; i += threads) {
        int k = i / (WIDE / 4), j = i % (WIDE / 4) * 4;

        if (j / SUB > k / SUB)
            continue;
        if (k < n)
            refined_copy(s->l + row_at(k) + j, g.square + k * WIDE + j);
        else
            *(float4 *)(s->l + row_at(k) + j) = make_float4(0, 0, 0, 0);
    }
    for (int i = t; i < all * ROWS / 4; i += threads) {
        int k = i / (ROWS / 4), r = i % (ROWS / 4) * 4;
        uint64_t at = k * g.pitch + row + r;

        if (k < n) {
            refined_copy(&s->w[k][r], g.w + at);
            refined_copy(&s->pushed[k][r], g.gradient + at);
            refined_copy(&s->x[k][r], g.gradient + at);
            continue;
        }
        for (int q = r; q < r + 4; q++)
            s->w[k][q] = s->pushed[k][q] = s->x[k][q] = 0;
    }
    for (int k = t; k < all; k += threads) {
        s->diagonal[k] = k < n ? g.square[k * (WIDE + 1)] : 1;
        s->inverse[k] = 1 / s->diagonal[k];
    }
    for (int i = t; i < 256; i += threads)
        s->mantissa[i] = g.mantissa[i];
    refined_arrived();
}

/* w's nearest code on a grid, less the zero. */
static __device__ __forceinline__ float nearest(float w, float scale,
                                                float inverse, float zero)
{
    float x = fminf(fmaxf(divide(w, scale, inverse), -zero), 15 - zero);

    return (x + ROUNDER) - ROUNDER;
}

/* acc[j] += d L[k][first + j] for the first `count` columns of a sub-block. */
static __device__ __forceinline__ void add_row(float acc[SUB], float d,
                                               const float *l, int count)
{
#pragma unroll
    for (int j = 0; j < SUB; j += 4) {
        float4 x;

        if (j >= count)
            continue;
        x = *(const float4 *)(l + j);
        acc[j] = fmaf(d, x.x, acc[j]);
        if (j + 1 < count)
            acc[j + 1] = fmaf(d, x.y, acc[j + 1]);
        if (j + 2 < count)
            acc[j + 2] = fmaf(d, x.z, acc[j + 2]);
        if (j + 3 < count)
            acc[j + 3] = fmaf(d, x.w, acc[j + 3]);
    }
}

/* The displacements w - q of 32 columns of row r.  scale > 0: q on that grid.
 * scale 0: q = w', without rounding, and the range of w' goes to lo and hi. */
static __device__ void displace(struct group_memory *s, int first, int r,
                                float scale, float zero, float *lo, float *hi)
{
    float inverse = reciprocal(scale), acc[SUB];

#pragma unroll
    for (int k = 0; k < SUB; k++)
        acc[k] = s->x[first + k][r];
#pragma unroll
    for (int k = SUB - 1; k >= 0; k--) {
        float w = s->w[first + k][r], x = -acc[k] * s->inverse[first + k];

        *lo = fminf(*lo, w - x);
        *hi = fmaxf(*hi, w - x);
        if (scale != 0)
            x = w - nearest(w - x, scale, inverse, zero) * scale;
        add_row(acc, x, s->l + row_at(first + k) + first, k);
        s->x[first + k][r] = x;
    }
}

/* The same for all columns: one thread per row; then all threads add the error
 * feedback to the columns to the left. */
static __device__ void displace_all(struct group_memory *s, int all,
                                    float scale, float zero)
{
    int r = (int)threadIdx.x % ROWS, part = (int)threadIdx.x / ROWS;
    int parts = (int)blockDim.x / ROWS;
    float lo = 0, hi = 0;

    for (int first = all - SUB; first >= 0; first -= SUB) {
        if (part == 0)
            displace(s, first, r, scale, zero, &lo, &hi);
        __syncthreads();
        for (int j = SOLVE_PUSH * part; j < first; j += SOLVE_PUSH * parts)
            refined_push(s->x, s->x, first, j, r,
                         [&](int k) { return s->l + row_at(k); });
        __syncthreads();
    }
    if (part == 0) {
        s->lo[r] = lo;
        s->hi[r] = hi;
    }
    __syncthreads();
}

/* d = w - q of a weight, and its split. */
static __device__ __forceinline__ void put(const struct refined_group &g, int k,
                                           uint64_t row, float d)
{
    g.d[k * g.pitch + row] = d;
    refined_split(g.split + 3 * k * g.pitch + row, g.pitch, d);
}

/* g->given: d of the group on the grids that are set. */
template <enum dtype S>
static __device__ void solve_given(struct group_memory *s,
                                   const struct refined_group &g, int all,
                                   uint64_t row)
{
    uint32_t meta = g.meta[row + threadIdx.x % ROWS];

    displace_all(s, all, refined_scale<S>(s->mantissa, meta),
                 (float)meta_zero(meta));
    for (int i = (int)threadIdx.x; i < (int)g.n * ROWS; i += (int)blockDim.x)
        put(g, i / ROWS, row + i % ROWS, s->x[i / ROWS][i % ROWS]);
}

/* As block_candidate() of gptq/solve/block_grid.h. */
template <enum dtype S>
static __device__ uint32_t candidate(const struct group_memory *s,
                                     const struct refined_group &g, int i,
                                     float lo, float hi)
{
    double low, scale;
    uint32_t meta;

    if (g.symmetric) {
        scale = g.factors[g.negative ? i / 2 : i] * 2 * fmaxf(-lo, hi) /
                (QUANT_LEVELS - 1);
        meta = refined_meta<S>((float)scale, 8, true);
        return g.negative && i % 2 ? meta ^ (uint32_t)QUANT_NEGATIVE << 24 :
                                     meta;
    }
    low = g.factors[i % g.n_factors] * lo;
    scale = __dsub_rn(__dmul_rn(g.factors[i / g.n_factors], hi), low) /
            (QUANT_LEVELS - 1);
    meta = refined_meta<S>((float)scale, 0, false);
    if (!(scale > 0))
        return meta;
    scale = meta_scale<S>(s->mantissa, meta);
    return refined_meta<S>((float)scale, (int)fmin(15.0, rint(-low / scale)),
                           false);
}

/* Two candidates of a row, solved at the same time. */
struct pair {
    float scale[2], inverse[2], zero[2], loss[2];
    uint32_t meta[2];
};

/* acc = error feedback from the columns from `end` on, computed from their
 * codes, onto the 32 columns from `first` on. */
static __device__ __forceinline__ void push_codes(const struct group_memory *s,
                                                  const struct pair &p,
                                                  int first, int end, int r,
                                                  float acc[2][SUB])
{
    for (int word = first / 8 + SUB / 8; word < end / 8; word++) {
        uint32_t a = s->codes[word][0][threadIdx.x];
        uint32_t b = s->codes[word][1][threadIdx.x];

#pragma unroll
        for (int i = 0; i < 8; i++, a >>= 4, b >>= 4) {
            int k = 8 * word + i;
            float w = s->w[k][r];
            float x = w - ((float)(a & 15) - p.zero[0]) * p.scale[0];
            float y = w - ((float)(b & 15) - p.zero[1]) * p.scale[1];
            const float4 *l = (const float4 *)(s->l + row_at(k) + first);

#pragma unroll
            for (int j = 0; j < SUB; j += 4) {
                float4 f = l[j / 4];

                acc[0][j] = fmaf(x, f.x, acc[0][j]);
                acc[1][j] = fmaf(y, f.x, acc[1][j]);
                acc[0][j + 1] = fmaf(x, f.y, acc[0][j + 1]);
                acc[1][j + 1] = fmaf(y, f.y, acc[1][j + 1]);
                acc[0][j + 2] = fmaf(x, f.z, acc[0][j + 2]);
                acc[1][j + 2] = fmaf(y, f.z, acc[1][j + 2]);
                acc[0][j + 3] = fmaf(x, f.w, acc[0][j + 3]);
                acc[1][j + 3] = fmaf(y, f.w, acc[1][j + 3]);
            }
        }
    }
}

/* Quantize column k on grid i of the pair: returns the code; *d = w - q. */
static __device__ __forceinline__ uint32_t
quantize(const struct group_memory *s, struct pair *p, int i, int k, float acc,
         float w, float *d)
{
    float star = fmaf(acc, s->inverse[k], w), q, miss;
    float x = nearest(star, p->scale[i], p->inverse[i], p->zero[i]);

    q = x * p->scale[i];
    *d = w - q;
    miss = (star - q) * s->diagonal[k];
    p->loss[i] = fmaf(miss, miss, p->loss[i]);
    return (uint32_t)(x + p->zero[i]);
}

/* Solve the group on both grids of the pair: codes and losses. */
static __device__ void solve_pair(struct group_memory *s, struct pair *p,
                                  int all, int r)
{
    for (int first = all - SUB; first >= 0; first -= SUB) {
        float acc[2][SUB];
        uint32_t word[2] = { 0, 0 };

#pragma unroll
        for (int k = 0; k < SUB; k++)
            acc[0][k] = acc[1][k] = s->pushed[first + k][r];
        push_codes(s, *p, first, all, r, acc);
#pragma unroll
        for (int k = SUB - 1; k >= 0; k--) {
            const float *l = s->l + row_at(first + k) + first;
            float w = s->w[first + k][r], x, y;

            word[0] =
                word[0] << 4 | quantize(s, p, 0, first + k, acc[0][k], w, &x);
            word[1] =
                word[1] << 4 | quantize(s, p, 1, first + k, acc[1][k], w, &y);
            add_row(acc[0], x, l, k);
            add_row(acc[1], y, l, k);
            if (k % 8 == 0) {
                s->codes[(first + k) / 8][0][threadIdx.x] = word[0];
                s->codes[(first + k) / 8][1][threadIdx.x] = word[1];
            }
        }
    }
}

/* Solve all candidates of this thread; the codes of its best go to s->best. */
template <enum dtype S>
static __device__ void try_all(struct group_memory *s,
                               const struct refined_group &g, int all)
{
    int r = (int)threadIdx.x % ROWS, part = (int)threadIdx.x / ROWS;
    int parts = (int)blockDim.x / ROWS, index = INT32_MAX;
    float lo = s->lo[r], hi = s->hi[r], best = INFINITY;
    uint32_t meta = 0;

    for (int c = 2 * part; c < g.candidates; c += 2 * parts) {
        struct pair p = {};
        int i;

        for (i = 0; i < 2; i++) {
            int number = c + i < g.candidates ? c + i : c;

            p.meta[i] = candidate<S>(s, g, number, lo, hi);
            p.scale[i] = refined_scale<S>(s->mantissa, p.meta[i]);
            p.inverse[i] = reciprocal(p.scale[i]);
            p.zero[i] = (float)meta_zero(p.meta[i]);
        }
        solve_pair(s, &p, all, r);
        i = p.loss[1] < p.loss[0];
        if (index != INT32_MAX && !((i ? p.loss[1] : p.loss[0]) < best))
            continue;
        best = i ? p.loss[1] : p.loss[0];
        meta = i ? p.meta[1] : p.meta[0];
        index = c + i;
        for (int k = 0; k < all / 8; k++)
            s->best[k][threadIdx.x] = s->codes[k][i][threadIdx.x];
    }
    s->cost[threadIdx.x] = best;
    s->meta[threadIdx.x] = meta;
    s->index[threadIdx.x] = index;
    __syncthreads();
}

/* Choose each row's cheapest candidate, the first of equal ones, and write its
 * grid, codes and d. */
template <enum dtype S>
static __device__ void keep_best(struct group_memory *s,
                                 const struct refined_group &g, uint64_t row)
{
    int threads = (int)blockDim.x, t = (int)threadIdx.x, best = t;

    if (t < ROWS) {
        for (int i = t + ROWS; i < threads; i += ROWS)
            if (s->cost[i] < s->cost[best] ||
                (s->cost[i] == s->cost[best] && s->index[i] < s->index[best]))
                best = i;
        s->winner[t] = best;
        s->scale[t] = refined_scale<S>(s->mantissa, s->meta[best]);
        s->zero[t] = (float)meta_zero(s->meta[best]);
        g.meta[row + t] = s->meta[best];
    }
    __syncthreads();
    for (int i = t; i < (int)g.n * ROWS; i += threads) {
        int k = i / ROWS, r = i % ROWS;
        uint32_t code = s->best[k / 8][s->winner[r]] >> k % 8 * 4 & 15;

        g.codes[k * g.pitch + row + r] = (uint8_t)code;
        put(g, k, row + r,
            s->w[k][r] - ((float)code - s->zero[r]) * s->scale[r]);
    }
}

/* Choose the grid of each row of a group and quantize it; grid (pitch / 16,
 * matrices).  Up to twelve threads per row, each solving the group on two
 * candidates at a time.  Loads of L are broadcast: each serves all threads.  Of
 * earlier columns only codes are kept, eight in a word, and their displacements
 * are computed again.
 *
 * Shared memory: 107 KiB, so that two blocks fit a multiprocessor of Hopper.
 * Floor: 64 n f32 multiply-adds per weight for n candidates.  With g.given no
 * grid is chosen. */
template <enum dtype S>
static __global__ void __launch_bounds__(THREADS, 2)
    refined_group_kernel(const struct refined_group all_of)
{
    extern __shared__ float4 memory[];
    const struct refined_group g = refined_of(all_of, blockIdx.y);
    struct group_memory *s = (struct group_memory *)memory;
    uint64_t row = (uint64_t)blockIdx.x * ROWS;
    int all = refined_columns(g.n);

    fetch(s, g, row);
    if (g.given) {
        solve_given<S>(s, g, all, row);
        return;
    }
    displace_all(s, all, 0, 0);
    try_all<S>(s, g, all);
    keep_best<S>(s, g, row);
}

template <enum dtype S>
static int launch(struct cuda_context *c, const struct refined_group *g, int n,
                  struct err *e)
{
    unsigned pairs = (unsigned)(g->candidates + 1) / 2;
    unsigned rounds = (pairs + PARTS - 1) / PARTS;
    unsigned parts = (unsigned)round_up((pairs + rounds - 1) / rounds, 2);
    int room = sizeof(struct group_memory);

    CUDA_TRY(cudaFuncSetAttribute(refined_group_kernel<S>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  room));
    refined_group_kernel<S>
        <<<dim3((unsigned)(g->pitch / ROWS), (unsigned)n),
           ROWS *(parts < 4 ? 4 : parts), room, c->stream>>>(*g);
    LAUNCHED();
    return 0;
}

int refined_choose(struct cuda_context *c, enum dtype scale_dtype,
                   const struct refined_group *g, int n, struct err *e)
{
    return scale_dtype == DT_F16 ? launch<DT_F16>(c, g, n, e) :
                                   launch<DT_BF16>(c, g, n, e);
}
