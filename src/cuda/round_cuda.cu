/* round_cuda.cu - weights rounded to nearest on the grid that spans each group, to
 * the words of a layout (forge-pack --rtn): one read of the weights, one write of
 * words and grids, equal to the bit to pack/round.h.
 *
 * A block of threads has tiles of ROWS outputs x 128 inputs, one after the other,
 * eight words of eight weights for each thread, of eight outputs side by side, which
 * stay in its registers while the next tile's come to shared memory: their extremes
 * go over a group's lanes by shuffles, a thread computes a group's grid, all round.
 *
 * Floor: 2.5 bytes a weight, and 4 for each group. */
#include "cuda/internal.cuh"
#include "cuda/mma.cuh"
#include "cuda/pack_internal.cuh"
#include "cuda/round_pair.cuh"
#include "pack/round.h"

enum {
    ROWS = 128, /* outputs of a tile */
    BLOCKS = ROWS / EACH,
    THREADS = BLOCKS * WORDS,
    RESIDENT = 3, /* blocks of a multiprocessor */
    /* words of eight inputs in shared memory, so that a warp's are in different
     * banks: AWQ's [8][ROWS / 8], GPTQ's [ROWS] */
    PITCH_AWQ = EACH * BLOCKS + 2,
    PITCH_GPTQ = ROWS + 4
};

struct round_args {
    const uint4 *w; /* eight weights */
    const float *mantissa;
    uint32_t *meta, *out;
    uint32_t rows, words, groups; /* words, groups: per row */
    int group_words;              /* 1, 2, 4, 8 or 16 */
    uint32_t down, across;        /* tiles of a column, of a row */
    uint32_t inner, outer;        /* from a block's tile to its next: tile_at */
    unsigned *bad; /* set: a weight is not finite, or a scale beyond F16 */
};

/* ---- extremes ---- */

/* Of eight weights, as bits of T: in the low half the largest, in the high half the
 * most negative, with its sign. */
static __device__ __forceinline__ uint32_t extremes(const uint4 x)
{
    uint32_t hi = __vimax3_s16x2(__vimax3_s16x2(x.x, x.y, x.z), x.w, 0);
    uint32_t lo =
        __vimax3_u16x2(__vimax3_u16x2(x.x, x.y, x.z), x.w, 0x80008000);

    return __vmaxu2(__byte_perm(hi, lo, 0x5410), __byte_perm(hi, lo, 0x7632));
}

/* e: extremes in eight rows of this lane's word.  Returns those of row lane % 8 over
 * the 16 lanes of a half of the warp: with each step a lane gives away half of its
 * rows, so that eight shuffles do. */
static __device__ __forceinline__ uint32_t row_extremes(uint32_t e[EACH])
{
#pragma unroll
    for (int d = EACH / 2; d; d /= 2) {
        bool upper = threadIdx.x & d;

#pragma unroll
        for (int i = 0; i < d; i++) {
            uint32_t mine = upper ? e[i + d] : e[i];
            uint32_t other = upper ? e[i] : e[i + d];

            e[i] = __vmaxu2(mine, __shfl_xor_sync(~0u, other, d));
        }
    }
    return __vmaxu2(e[0], __shfl_xor_sync(~0u, e[0], EACH));
}

/* ---- grids ---- */

/* log2 of 2^x, x = n / 256: of floats with an error below 2^-22 of itself and 2^-22,
 * of doubles where that may be the other side of a half. */
template <enum dtype S>
static __device__ __forceinline__ uint32_t meta_near(float scale)
{
    const float lo = S == DT_F16 ? -14 * 256 : -126 * 256;
    const float hi = S == DT_F16 ? 16 * 256 - 1 : 128 * 256 - 2;
    float x, n;

    if (!(scale > 0))
        return 0; /* as quant_meta() */
    x = __log2f(scale) * 256;
    n = rintf(x);
    if (!(fabsf(x - n) < 0.4997f - 6e-7f * fabsf(x)) || scale < 0x1p-100f)
        n = (float)rint(log2((double)scale) * 256);
    return (uint16_t)(int16_t)fminf(fmaxf(n, lo), hi);
}

/* (hi + lo) / 15 as a double, rounded to float.  Of a sum that is a float, and within
 * these bounds: the product with 1 / 15 and one step of Newton's, which is rounded as
 * the quotient is (Markstein 1990); double then float is the same, since 53 >= 2 * 24
 * + 2 bits. */
static __device__ __forceinline__ float fifteenth(float hi, float lo)
{
    const float inverse = 1.0f / 15;
    float sum = __fadd_rn(hi, lo), part = __fsub_rn(sum, hi), rest, q;

    rest = __fadd_rn(__fsub_rn(hi, __fsub_rn(sum, part)), __fsub_rn(lo, part));
    if (rest != 0 || !(sum > 0x1p-90f && sum < 0x1p120f))
        return (float)(((double)hi + lo) / 15);
    q = __fmul_rn(sum, inverse);
    return fmaf(fmaf(-15, q, sum), inverse, q);
}

/* Whether divide() and round_pair() do for a scale; those of F16 are 2^-14 at least. */
template <enum dtype S>
static __device__ __forceinline__ bool ordinary(float scale)
{
    return S == DT_F16 || (scale > 0x1p-90f && scale < 0x1p90f);
}

/* quant_span() of the extremes, and its scale. */
template <enum dtype T, enum dtype S, bool SYM>
static __device__ __forceinline__ uint32_t span(const struct round_args &a,
                                                uint32_t e, float *scale)
{
    const uint32_t infinite = T == DT_BF16 ? 0x7f80 : 0x7c00;
    float2 x = pair_of<T>(e &= 0x7fffffff); /* hi, -lo */
    float most = fmaxf(x.x, x.y), zero;
    float step = SYM ? fifteenth(most, most) : fifteenth(x.x, x.y);
    uint32_t meta = meta_near<S>(step);

    *scale = meta_scale<S>(a.mantissa, meta);
    if ((e & 0xffff) >= infinite || e >> 16 >= infinite ||
        (S == DT_F16 && (SYM ? 2 * most : __fadd_ru(x.x, x.y)) > 15 * 65504.0f))
        *a.bad = 1;
    if (SYM)
        return meta | 8u << 16 | (uint32_t)QUANT_SYMMETRIC << 24;
    if (!(step > 0))
        return meta | 8u << 16;
    zero = rintf(ordinary<S>(*scale) ? divide(x.y, *scale, reciprocal(*scale)) :
                                       __fdiv_rn(x.y, *scale));
    return meta | (zero >= 15 ? 15u : (uint32_t)(int)zero) << 16;
}

/* The grid of a scale and a zero point. */
template <enum dtype T, enum dtype S>
static __device__ __forceinline__ struct round_grid grid_of(float scale,
                                                            uint32_t zero)
{
    uint32_t odd = zero & 1, bits;
    float most = (15.25f - (float)zero) * scale;

    if (!ordinary<S>(scale))
        return { 0, scale, zero, CODES_0 };
    if (T == DT_BF16) {
        bits = __float_as_uint(most) >> 16;
    } else {
        __half h = __float2half_rz(fminf(most, 65504));

        bits = *(const uint16_t *)&h;
    }
    return { 16 * reciprocal(scale), 16 * (float)(1040 + odd + zero),
             bits | bits << 16, CODES_0 + odd * 0x10001 };
}

/* ---- a tile ---- */

/* The grid of group g of row r from its extremes. */
template <enum dtype T, enum dtype S, bool SYM>
static __device__ __forceinline__ struct round_grid
make_grid(const struct round_args &a, uint32_t r, uint32_t g, uint32_t e)
{
    float scale;
    uint32_t meta = span<T, S, SYM>(a, e, &scale);

    a.meta[(uint64_t)r * a.groups + g] = meta;
    return grid_of<T, S>(scale, SYM ? 8 : meta >> 16);
}

/* The tile's grids where a group is a word of each row of the tile: each warp makes
 * and reads its own.  True: one of the warp's has inverse 0. */
template <enum dtype T, enum dtype S, bool SYM>
static __device__ __forceinline__ bool
make_own_grids(const struct round_args &a, struct round_grid *grids,
               const uint4 x[EACH], uint32_t r0, uint32_t g)
{
    int k = (int)threadIdx.x % WORDS;
    int y = (int)threadIdx.x / WORDS * EACH + k % EACH;
    uint32_t e[EACH], own;
    bool exact = false;

#pragma unroll
    for (int i = 0; i < EACH; i++)
        e[i] = extremes(x[i]);
    own = row_extremes(e);
    if (k < EACH && r0 + y < a.rows) {
        struct round_grid grid = make_grid<T, S, SYM>(a, r0 + y, g, own);

        exact = grid.inverse == 0;
        grids[y] = grid;
    }
    __syncwarp();
    return S != DT_F16 && __any_sync(~0u, exact);
}

/* The same of smaller groups, from the extremes of each, a thread for each. */
template <enum dtype T, enum dtype S, bool SYM>
static __device__ __forceinline__ void make_grids(const struct round_args &a,
                                                  struct round_grid *grids,
                                                  uint32_t r0, uint32_t w0)
{
    int n = WORDS / a.group_words;

    for (int i = (int)threadIdx.x; i < ROWS * n; i += THREADS) {
        uint32_t r = r0 + i / n, g = w0 / a.group_words + i % n;

        if (r < a.rows && g < a.groups)
            grids[i] = make_grid<T, S, SYM>(a, r, g, grids[i].most);
    }
}

template <enum dtype T, enum dtype S, bool SYM>
static __device__ __forceinline__ void
make_small_grids(const struct round_args &a, struct round_grid *grids,
                 const uint4 x[EACH], uint32_t r0, uint32_t w0)
{
    int gw = a.group_words, n = WORDS / gw, k = (int)threadIdx.x % WORDS;

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int y = (int)threadIdx.x / WORDS * EACH + i;
        uint32_t e = extremes(x[i]);

        for (int d = gw / 2; d; d /= 2)
            e = __vmaxu2(e, __shfl_xor_sync(~0u, e, d));
        if (k % gw == 0)
            grids[y * n + k / gw].most = e;
    }
    __syncthreads();
    make_grids<T, S, SYM>(a, grids, r0, w0);
    __syncthreads();
}

/* A tile: its first row, first word, and rows.  In the order of the words that are
 * written. */
template <enum layout L> struct tile_at {
    uint32_t r, c; /* in tiles */

    __device__ __forceinline__ tile_at(const struct round_args &a, uint32_t t)
    {
        r = L == LAYOUT_CT ? t / a.across : t % a.down;
        c = L == LAYOUT_CT ? t % a.across : t / a.down;
    }
    /* The tile that is gridDim.x further. */
    __device__ __forceinline__ void advance(const struct round_args &a)
    {
        uint32_t &inner = L == LAYOUT_CT ? c : r;
        uint32_t &outer = L == LAYOUT_CT ? r : c;
        uint32_t n = L == LAYOUT_CT ? a.across : a.down;

        inner += a.inner;
        outer += a.outer;
        if (inner >= n) {
            inner -= n;
            outer++;
        }
    }
    __device__ __forceinline__ uint32_t r0() const
    {
        return r * ROWS;
    }
    __device__ __forceinline__ uint32_t w0() const
    {
        return c * WORDS;
    }
};

/* Start the copies of this thread's words of a tile to its places of shared memory,
 * which are THREADS apart. */
template <enum layout L>
static __device__ __forceinline__ void
bring(const struct round_args &a, const struct tile_at<L> &at, uint4 *places)
{
    int k = (int)threadIdx.x % WORDS, y = (int)threadIdx.x / WORDS * EACH;
    uint32_t r = at.r0() + y, w = at.w0() + k;
    bool there = r < a.rows && w < a.words; /* rows come in eights */
    const uint4 *from = there ? a.w + (uint64_t)r * a.words + w : a.w;
    uint32_t step = there ? a.words : 0, to = shared_address(places);

#pragma unroll
    for (int i = 0; i < EACH; i++)
        copy_16(to + i * (THREADS * 16), from + i * step, there);
    copy_commit();
}

/* The first n of four words. */
static __device__ __forceinline__ void put_four(uint32_t *to, uint2 x, uint2 y,
                                                bool aligned, uint32_t n)
{
    if (aligned && n >= 4) {
        *(uint4 *)to = make_uint4(x.x, x.y, y.x, y.y);
        return;
    }
    if (n > 0)
        to[0] = x.x;
    if (n > 1)
        to[1] = x.y;
    if (n > 2)
        to[2] = y.x;
    if (n > 3)
        to[3] = y.y;
}

/* A tile's words of AWQ: a thread writes four of an input's, of some inputs. */
static __device__ __forceinline__ void
store_words_awq(const struct round_args &a, const uint32_t *words, uint32_t r0,
                uint32_t w0)
{
    enum { FOURS = BLOCKS / 4 };
    uint32_t across = a.rows / 8, in = threadIdx.x % FOURS * 4;
    uint32_t col = r0 / 8 + in;

#pragma unroll
    for (int i = 0; i < EACH * WORDS; i += THREADS / FOURS) {
        uint32_t k = threadIdx.x / FOURS + i;
        const uint32_t *from =
            words + k / EACH * PITCH_AWQ + k % EACH * BLOCKS + in;
        bool there = w0 + k / EACH < a.words && col < across;

        put_four(a.out + (uint64_t)(EACH * w0 + k) * across + col,
                 *(const uint2 *)from, *(const uint2 *)(from + 2),
                 across % 4 == 0, there ? across - col : 0);
    }
}

/* Those of GPTQ: a warp writes the tile's words of eight inputs. */
static __device__ __forceinline__ void
store_words_gptq(const struct round_args &a, const uint32_t *words, uint32_t r0,
                 uint32_t w0)
{
    enum { FOURS = ROWS / 4 };
    uint32_t in = threadIdx.x % FOURS * 4;

#pragma unroll
    for (int i = 0; i < WORDS; i += THREADS / FOURS) {
        uint32_t k = threadIdx.x / FOURS + i;
        const uint32_t *from = words + k * PITCH_GPTQ + in;

        if (w0 + k < a.words && r0 + in < a.rows)
            *(uint4 *)(a.out + (uint64_t)(w0 + k) * a.rows + r0 + in) =
                *(const uint4 *)from;
    }
}

/* The words of this thread's weights. */
template <enum dtype T, enum layout L, bool EXACT>
static __device__ __forceinline__ void
round_words(uint32_t out[EACH], const uint4 x[EACH],
            const struct round_grid *grids, int n)
{
    if constexpr (L == LAYOUT_AWQ) {
        round_awq<T, EXACT>(out, x, grids, n);
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            out[i] = round_word<T, EXACT>(x[i], grids[i * n]);
    }
}

/* Write a tile's words, from those of each thread.  words: a tile of shared memory
 * that no thread reads. */
template <enum layout L>
static __device__ __forceinline__ void
store_words(const struct round_args &a, const struct tile_at<L> &at,
            const uint32_t out[EACH], uint32_t *words)
{
    int k = (int)threadIdx.x % WORDS, b = (int)threadIdx.x / WORDS;

    if constexpr (L == LAYOUT_AWQ) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            words[k * PITCH_AWQ + i * BLOCKS + b] = out[i];
        __syncthreads();
        store_words_awq(a, words, at.r0(), at.w0());
    }
    if constexpr (L == LAYOUT_GPTQ) {
        uint4 *to = (uint4 *)(words + k * PITCH_GPTQ + b * EACH);

        to[0] = make_uint4(out[0], out[1], out[2], out[3]);
        to[1] = make_uint4(out[4], out[5], out[6], out[7]);
        __syncthreads();
        store_words_gptq(a, words, at.r0(), at.w0());
    }
    if constexpr (L == LAYOUT_CT) {
        uint32_t r = at.r0() + b * EACH, w = at.w0() + k;

        if (r < a.rows && w < a.words) {
            uint32_t *to = a.out + (uint64_t)r * a.words + w;

#pragma unroll
            for (int i = 0; i < EACH; i++)
                to[(uint64_t)i * a.words] = out[i];
        }
    }
}

/* WHOLE: groups of WORDS words.  A thread brings its words of the next tile when it
 * has those of this one in registers, so that memory is read all the time. */
template <enum dtype T, enum dtype S, enum layout L, bool SYM, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, RESIDENT)
    round_kernel(const struct round_args a)
{
    extern __shared__ uint4 memory[];
    uint4 *places = memory + threadIdx.x;
    struct round_grid *grids = (struct round_grid *)(memory + EACH * THREADS);
    int n = WHOLE ? 1 : WORDS / a.group_words;
    uint32_t *words = (uint32_t *)(grids + ROWS * n);
    int first = (int)threadIdx.x / WORDS * EACH * n;
    uint32_t tiles = a.down * a.across;
    struct tile_at<L> at(a, blockIdx.x);

    if (!WHOLE)
        first += (int)threadIdx.x % WORDS / a.group_words;
    bring<L>(a, at, places);
    for (uint32_t t = blockIdx.x, turn = 0; t < tiles;
         t += gridDim.x, turn ^= 1) {
        struct tile_at<L> next = at;
        uint4 x[EACH];
        uint32_t out[EACH];
        bool exact = S != DT_F16;

        copy_wait<0>();
#pragma unroll
        for (int i = 0; i < EACH; i++)
            x[i] = places[i * THREADS];
        next.advance(a);
        if (t + gridDim.x < tiles)
            bring<L>(a, next, places);
        if (WHOLE)
            exact = make_own_grids<T, S, SYM>(a, grids, x, at.r0(), at.c);
        else
            make_small_grids<T, S, SYM>(a, grids, x, at.r0(), at.w0());
        if (exact)
            round_words<T, L, true>(out, x, grids + first, n);
        else
            round_words<T, L, false>(out, x, grids + first, n);
        store_words<L>(a, at, out, words + turn * (WORDS * PITCH_GPTQ));
        if (WHOLE)
            __syncwarp(); /* the grids are free again */
        else
            __syncthreads();
        at = next;
    }
}

/* ---- launching ---- */

template <enum dtype T, enum dtype S, enum layout L, bool SYM, bool WHOLE>
static int launch(struct cuda_context *c, struct round_args *a, struct err *e)
{
    unsigned most = (unsigned)c->processors * RESIDENT;
    unsigned tiles = a->down * a->across, grid = tiles < most ? tiles : most;
    unsigned inner = L == LAYOUT_CT ? a->across : a->down;
    int room =
        (int)(EACH * THREADS * sizeof(uint4) +
              ROWS * (WORDS / a->group_words) * sizeof(struct round_grid)) +
        (L == LAYOUT_CT ? 0 : 2 * WORDS * PITCH_GPTQ * 4);

    a->inner = grid % inner;
    a->outer = grid / inner;
    CUDA_TRY(cudaFuncSetAttribute(round_kernel<T, S, L, SYM, WHOLE>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  room));
    round_kernel<T, S, L, SYM, WHOLE><<<grid, THREADS, room, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

template <enum dtype T, enum dtype S, enum layout L, bool SYM>
static int launch_groups(struct cuda_context *c, struct round_args *a,
                         struct err *e)
{
    return a->group_words == WORDS ? launch<T, S, L, SYM, true>(c, a, e) :
                                     launch<T, S, L, SYM, false>(c, a, e);
}

template <enum dtype T, enum dtype S, enum layout L>
static int launch_grid(struct cuda_context *c, bool symmetric,
                       struct round_args *a, struct err *e)
{
    return symmetric ? launch_groups<T, S, L, true>(c, a, e) :
                       launch_groups<T, S, L, false>(c, a, e);
}

template <enum dtype T, enum dtype S>
static int launch_layout(struct cuda_context *c, enum layout l, bool symmetric,
                         struct round_args *a, struct err *e)
{
    return l == LAYOUT_AWQ ? launch_grid<T, S, LAYOUT_AWQ>(c, symmetric, a, e) :
           l == LAYOUT_CT  ? launch_grid<T, S, LAYOUT_CT>(c, symmetric, a, e) :
                             launch_grid<T, S, LAYOUT_GPTQ>(c, symmetric, a, e);
}

template <enum dtype T>
static int launch_scales(struct cuda_context *c, const struct round_params *p,
                         enum layout l, struct round_args *a, struct err *e)
{
    return p->scale_dtype == DT_F16 ?
               launch_layout<T, DT_F16>(c, l, p->symmetric, a, e) :
               launch_layout<T, DT_BF16>(c, l, p->symmetric, a, e);
}

int round_device(struct cuda_context *c, const struct round_params *p,
                 enum layout l, const void *w, uint32_t *meta, uint32_t *out,
                 struct err *e)
{
    struct round_args a = {};
    int rc = context_scales(c, DT_F32, &a.mantissa, e);

    if (rc < 0)
        return rc;
    a.w = (const uint4 *)w;
    a.meta = meta;
    a.out = out;
    a.rows = (uint32_t)p->rows;
    a.words = (uint32_t)(p->cols / 8);
    a.groups = (uint32_t)quant_groups(p->cols, p->group);
    a.group_words = (int)(p->group / 8);
    a.down = (a.rows + ROWS - 1) / ROWS;
    a.across = (a.words + WORDS - 1) / WORDS;
    a.bad = (unsigned *)c->bad;
    return p->dtype == DT_BF16 ? launch_scales<DT_BF16>(c, p, l, &a, e) :
                                 launch_scales<DT_F16>(c, p, l, &a, e);
}

static int check(const struct round_params *p, struct err *e)
{
    if (p->rows % 8 || p->cols % 8 || p->rows >= INT32_MAX ||
        p->cols >= INT32_MAX ||
        (p->rows / ROWS + 1) * (p->cols / 8 / WORDS + 1) >= INT32_MAX)
        return err_set(e, E_CONFIG, "the GPU rounds sizes in multiples of 8");
    if (p->group < 8 || p->group > 8 * WORDS || (p->group & (p->group - 1)))
        return err_set(e, E_CONFIG,
                       "the GPU rounds groups of 8, 16, 32, 64 or 128");
    if (p->dtype != DT_BF16 && p->dtype != DT_F16)
        return err_set(e, E_CONFIG, "the GPU rounds no %s weights",
                       dtype_name(p->dtype));
    return 0;
}

int cuda_round(struct cuda_context *c, const struct round_params *p,
               enum layout l, const void *w, uint32_t *meta, uint32_t *out,
               struct err *e)
{
    uint64_t metas = p->rows * quant_groups(p->cols, p->group) * sizeof(*meta);
    uint64_t words = p->rows * p->cols / 2;
    unsigned bad = 0;
    int rc = check(p, e);

    if (rc < 0 || (rc = buffer_need(c, &c->weight, words * 4, e)) < 0 ||
        (rc = buffer_need(c, &c->meta, metas, e)) < 0 ||
        (rc = buffer_need(c, &c->packed, words, e)) < 0 ||
        (rc = upload(c, c->weight.data, w, words * 4, e)) < 0)
        return rc;
    CUDA_TRY(cudaMemsetAsync(c->bad, 0, sizeof(bad), c->stream));
    rc = round_device(c, p, l, c->weight.data, (uint32_t *)c->meta.data,
                      (uint32_t *)c->packed.data, e);
    if (rc < 0 || (rc = download(c, out, c->packed.data, words, e)) < 0 ||
        (rc = download(c, meta, c->meta.data, metas, e)) < 0)
        return rc;
    CUDA_TRY(cudaMemcpyAsync(&bad, c->bad, sizeof(bad), cudaMemcpyDeviceToHost,
                             c->stream));
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    return bad ? 1 : 0;
}
