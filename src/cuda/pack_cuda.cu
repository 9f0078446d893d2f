/* pack_cuda.cu - words of the runtimes' layouts from codes (forge-pack), and
 * codes from weights, rounded to nearest (forge-solve --method rtn).
 *
 * A block of threads handles a tile of 256 outputs x 128 inputs.  A word holds
 * the codes of eight inputs (16 bytes of bf16 weights); these are the words of
 * compressed-tensors.  The other layouts transpose the tile in shared memory:
 * its words (GPTQ), or 8 x 8 matrices of nibbles (AWQ).
 *
 * Measured on an H200, rounding [7168, 18432] of bf16: 0.105 ms, at 74 % of the
 * speed of copying the same bytes.  Variants: one word per thread in flight, 32
 * registers, all 2,048 threads of a multiprocessor: 0.111; the same with a
 * tile's grids decoded once, not for every word (84 instructions per word
 * instead of 140): 0.105, as it is now.  Four words in flight with 64 registers
 * 0.137; two words in flight 0.115 to 0.124; weights by cp.async through shared
 * memory 0.112 to 0.116; IEEE division instead of the product 0.162.  Within
 * the noise: uncached loads and stores, blocks in the order of rows. */
#include "cuda/internal.cuh"
#include "cuda/pack_internal.cuh"

enum {
    ROWS = 256, /* outputs of a tile */
    THREADS = ROWS / EACH * WORDS,
    RESIDENT = 4 /* blocks of a multiprocessor */
};

struct pack_args {
    const void *in; /* weights or codes */
    const uint32_t *meta;
    const float *mantissa;
    uint32_t *out;
    uint64_t rows, words, groups; /* words, groups: per row */
    uint64_t group_inverse;       /* word * this >> 32 is the word's group */
    uint32_t tile_groups;         /* groups that a tile can touch, at most */
};

/* A grid in the form that rounding needs. */
struct pack_grid {
    float inverse, lo; /* 1 / scale; least value of ROUNDER + code - zero */
    float scale;
    float miss; /* 1: use exact_word(), the inverse is too inaccurate */
};

/* Eight weights as floats, from 16 or 32 aligned bytes. */
template <enum dtype T>
static __device__ __forceinline__ void load_eight(float w[8], const void *from,
                                                  size_t word)
{
    if (T == DT_F32) {
        *(float4 *)w = ((const float4 *)from)[2 * word];
        *(float4 *)(w + 4) = ((const float4 *)from)[2 * word + 1];
        return;
    }
    uint4 x = ((const uint4 *)from)[word];
    uint32_t pair[4] = { x.x, x.y, x.z, x.w };

#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (T == DT_BF16) {
            w[2 * i] = __uint_as_float(pair[i] << 16);
            w[2 * i + 1] = __uint_as_float(pair[i] & 0xffff0000);
        } else {
            float2 f = __half22float2(*(const __half2 *)&pair[i]);

            w[2 * i] = f.x;
            w[2 * i + 1] = f.y;
        }
    }
}

/* The codes of eight weights by IEEE division and rint(). */
static __device__ uint32_t exact_word(const float w[8],
                                      const struct pack_grid &g)
{
    float lo = g.lo - ROUNDER;
    uint32_t out = 0;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        float x = __fdiv_rn(w[i], g.scale);

        x = fminf(fmaxf(x, lo), 15 + lo) + ROUNDER;
        out |= (__float_as_uint(x) - __float_as_uint(g.lo)) << 4 * i;
    }
    return out;
}

/* The same codes by multiplication with 1 / scale.  For quotients below 17 its
 * error is below 4e-6 of a step; a word with a quotient that close to the
 * middle between two codes is computed again by exact_word().  A clamped
 * ROUNDER + n has n in its low bits, so the eight are shifted and added as
 * integers, and the constants are subtracted once. */
static __device__ __forceinline__ uint32_t round_word(const float w[8],
                                                      const struct pack_grid &g)
{
    float hi = g.lo + 15, miss = g.miss;
    uint32_t out = 0u - __float_as_uint(g.lo) * 0x11111111u;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        float t = fmaf(w[i], g.inverse, ROUNDER);

        miss = fmaxf(miss, fabsf(fmaf(w[i], g.inverse, ROUNDER - t)));
        t = fminf(fmaxf(t, g.lo), hi);
        out += __float_as_uint(t) << 4 * i;
    }
    return miss > 0.5f - 1e-5f ? exact_word(w, g) : out;
}

/* Decode the grids of the tile: grids[ROWS][tile_groups]. */
template <enum dtype S>
static __device__ __forceinline__ void load_grids(const struct pack_args &a,
                                                  struct pack_grid *grids,
                                                  uint64_t r0, uint64_t g0)
{
    for (uint32_t i = threadIdx.x; i < ROWS * a.tile_groups; i += THREADS) {
        uint64_t r = r0 + i / a.tile_groups, g = g0 + i % a.tile_groups;
        uint32_t meta =
            r < a.rows && g < a.groups ? a.meta[r * a.groups + g] : 0;
        float scale = meta_scale<S>(a.mantissa, meta);
        bool usual = scale > 0x1p-90f && scale < 0x1p90f;

        grids[i] = { reciprocal(scale), ROUNDER - (float)meta_zero(meta), scale,
                     usual ? 0.0f : 1.0f };
    }
}

/* Compute this thread's words of the tile: one column of words. */
template <enum dtype T, enum layout L>
static __device__ __forceinline__ void
make_words(const struct pack_args &a, const struct pack_grid *grids,
           pack_tile<ROWS> &tile, uint64_t r0, uint64_t w0, uint64_t g0)
{
    int k = (int)threadIdx.x % WORDS, first = (int)threadIdx.x / WORDS;
    int rows = a.rows - r0 < ROWS ? (int)(a.rows - r0) : ROWS;
    size_t at = (r0 + first) * a.words + w0 + k;

    if (T != DT_U4)
        grids += ((w0 + k) * a.group_inverse >> 32) - g0;
    if (w0 + k >= a.words)
        return;
#pragma unroll(T == DT_U4 ? 8 : 1)
    for (int y = first; y < rows; y += THREADS / WORDS) {
        uint32_t x;

        if (T == DT_U4) {
            x = ((const uint32_t *)a.in)[at];
        } else {
            float w[8];

            load_eight<T>(w, a.in, at);
            x = round_word(w, grids[y * a.tile_groups]);
        }
        if (L != LAYOUT_CT)
            tile.at(k, y) = x;
        else
            a.out[at] = x;
        at += THREADS / WORDS * a.words;
    }
}

/* A block of 512 threads per tile; grid (rows / 256, words / 16).  Shared
 * memory: 18 KiB of words, 4 KiB of grids for groups of 128.  Every word is
 * computed by one thread.  Floor: 2.5 bytes per bf16 weight; from codes 1 byte
 * per code. */
template <enum dtype T, enum dtype S, enum layout L>
static __global__ void __launch_bounds__(THREADS, RESIDENT)
    pack_kernel(const struct pack_args a)
{
    extern __shared__ float4 memory[];
    struct pack_grid *grids = (struct pack_grid *)memory;
    pack_tile<ROWS> &tile = *(pack_tile<ROWS> *)(grids + ROWS * a.tile_groups);
    uint64_t r0 = (uint64_t)blockIdx.x * ROWS,
             w0 = (uint64_t)blockIdx.y * WORDS;
    uint64_t g0 = w0 * a.group_inverse >> 32;

    if (T != DT_U4) {
        load_grids<S>(a, grids, r0, g0);
        __syncthreads();
    }
    make_words<T, L>(a, grids, tile, r0, w0, g0);
    __syncthreads();
    if (L == LAYOUT_AWQ)
        store_awq(a, tile, r0, w0);
    else if (L == LAYOUT_GPTQ)
        store_gptq(a, tile, r0, w0);
}

template <enum dtype T, enum dtype S, enum layout L>
static int launch(struct cuda_context *c, const struct pack_args *a,
                  struct err *e)
{
    dim3 grid((unsigned)((a->rows + ROWS - 1) / ROWS),
              (unsigned)((a->words + WORDS - 1) / WORDS));
    int room = (int)(ROWS * a->tile_groups * sizeof(struct pack_grid)) +
               (L == LAYOUT_CT ? 0 : (int)sizeof(pack_tile<ROWS>));

    CUDA_TRY(cudaFuncSetAttribute(pack_kernel<T, S, L>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  room));
    pack_kernel<T, S, L><<<grid, THREADS, room, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

static int launch_codes(struct cuda_context *c, enum layout l,
                        const struct pack_args *a, struct err *e)
{
    return l == LAYOUT_AWQ ? launch<DT_U4, DT_F16, LAYOUT_AWQ>(c, a, e) :
           l == LAYOUT_CT  ? launch<DT_U4, DT_F16, LAYOUT_CT>(c, a, e) :
                             launch<DT_U4, DT_F16, LAYOUT_GPTQ>(c, a, e);
}

template <enum dtype T>
static int launch_weights(struct cuda_context *c, enum dtype scale_dtype,
                          const struct pack_args *a, struct err *e)
{
    return scale_dtype == DT_F16 ? launch<T, DT_F16, LAYOUT_CT>(c, a, e) :
                                   launch<T, DT_BF16, LAYOUT_CT>(c, a, e);
}

/* The number of groups, of n words each, that a tile's words can touch, at
 * most. */
static uint64_t tile_groups(uint64_t n)
{
    return n % WORDS == 0 ? 1 : WORDS % n == 0 ? WORDS / n : WORDS / n + 2;
}

int pack_device(struct cuda_context *c, const struct pack_job *p, struct err *e)
{
    struct pack_args a = {};
    int rc;

    a.in = p->w ? p->w : p->codes;
    a.out = p->out;
    a.rows = p->rows;
    a.words = p->cols / 8;
    if (!p->w)
        return launch_codes(c, p->layout, &a, e);
    a.meta = p->meta;
    a.groups = quant_groups(p->cols, p->group);
    a.group_inverse = (1ull << 32) / (p->group / 8) + (p->group != 8);
    a.tile_groups = (uint32_t)tile_groups(p->group / 8);
    rc = context_scales(c, DT_F32, &a.mantissa, e);
    if (rc < 0)
        return rc;
    return p->dtype == DT_BF16 ?
               launch_weights<DT_BF16>(c, p->scale_dtype, &a, e) :
           p->dtype == DT_F16 ?
               launch_weights<DT_F16>(c, p->scale_dtype, &a, e) :
               launch_weights<DT_F32>(c, p->scale_dtype, &a, e);
}

static int check(const struct pack_job *p, struct err *e)
{
    if (p->rows % 8 || p->cols % 8 || p->cols / 8 / WORDS >= 65535 ||
        p->rows / ROWS >= INT32_MAX)
        return err_set(e, E_CONFIG, "the GPU packs sizes in multiples of 8");
    if (!p->w)
        return 0;
    if (!p->group || p->group % 8)
        return err_set(e, E_CONFIG, "the GPU packs groups in multiples of 8");
    if (p->dtype != DT_BF16 && p->dtype != DT_F16 && p->dtype != DT_F32)
        return err_set(e, E_CONFIG, "the GPU takes no %s weights",
                       dtype_name(p->dtype));
    if (p->scale_dtype != DT_F16 && p->scale_dtype != DT_BF16)
        return err_set(e, E_CONFIG, "the GPU takes no %s scales",
                       dtype_name(p->scale_dtype));
    return 0;
}

/* Bytes of a row of weights or codes. */
static uint64_t row_of(const struct pack_job *p)
{
    return p->w ? p->cols * dtype_bits(p->dtype) / 8 : p->cols / 2;
}

/* Copy the words of rows first..first+rows-1 to the host.  In
 * compressed-tensors they are contiguous; in the other layouts every word of
 * inputs has a run of outputs of its own. */
static int store(struct cuda_context *c, const struct pack_job *p,
                 uint64_t first, uint64_t rows, struct err *e)
{
    uint64_t runs = p->layout == LAYOUT_AWQ ? p->cols : p->cols / 8;
    uint64_t bytes = p->cols / 2, run = rows * bytes / runs;

    if (p->layout == LAYOUT_CT || rows == p->rows)
        return download(c, (char *)p->out + first * bytes, c->packed.data,
                        rows * bytes, e);
    CUDA_TRY(cudaMemcpy2DAsync((char *)p->out + first * bytes / runs,
                               p->rows * bytes / runs, c->packed.data, run, run,
                               runs, cudaMemcpyDeviceToHost, c->stream));
    return 0;
}

static int pack_rows(struct cuda_context *c, const struct pack_job *p,
                     uint64_t first, uint64_t rows, struct err *e)
{
    uint64_t row = row_of(p);
    struct pack_job d = *p;
    int rc;

    d.rows = rows;
    rc = upload(c, c->weight.data,
                (const char *)(p->w ? p->w : p->codes) + first * row,
                rows * row, e);
    if (rc < 0)
        return rc;
    d.w = p->w ? c->weight.data : NULL;
    d.codes = (const uint32_t *)c->weight.data;
    d.meta = (const uint32_t *)c->meta.data +
             (p->w ? first * quant_groups(p->cols, p->group) : 0);
    d.out = (uint32_t *)c->packed.data;
    if ((rc = pack_device(c, &d, e)) < 0)
        return rc;
    return store(c, p, first, rows, e);
}

/* Rows per launch.  compressed-tensors goes in slices: one slice's words are
 * copied back while the next slice is uploaded.  In the other layouts a slice's
 * words are scattered, so all rows go at once if there is memory. */
static uint64_t rows_at_once(const struct cuda_context *c,
                             const struct pack_job *p)
{
    uint64_t row = row_of(p), most = slice_of(c) / row / 8 * 8 + 8;
    uint64_t room = c->limit ? c->limit / 2 : UINT64_MAX;

    if (p->layout != LAYOUT_CT && (row + p->cols / 2) * p->rows <= room)
        return p->rows;
    return most < p->rows ? most : p->rows;
}

static int pack(struct cuda_context *c, const struct pack_job *p, struct err *e)
{
    uint64_t most, metas = 0;
    int rc = check(p, e);

    if (rc < 0)
        return rc;
    if (p->w)
        metas = p->rows * quant_groups(p->cols, p->group) * sizeof(*p->meta);
    most = rows_at_once(c, p);
    if ((rc = buffer_need(c, &c->weight, most * row_of(p), e)) < 0 ||
        (rc = buffer_need(c, &c->meta, metas, e)) < 0 ||
        (rc = buffer_need(c, &c->packed, most * p->cols / 2, e)) < 0)
        return rc;
    if (metas && (rc = upload(c, c->meta.data, p->meta, metas, e)) < 0)
        return rc;
    for (uint64_t r = 0; r < p->rows; r += most)
        if ((rc = pack_rows(c, p, r, p->rows - r < most ? p->rows - r : most,
                            e)) < 0)
            return rc;
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    return 0;
}

int cuda_pack(struct cuda_context *c, enum layout l, uint32_t *out,
              const uint32_t *codes, uint64_t rows, uint64_t words,
              struct err *e)
{
    struct pack_job p = {};

    p.layout = l;
    p.rows = rows;
    p.cols = words * 8;
    p.codes = codes;
    p.out = out;
    return pack(c, &p, e);
}

int cuda_nearest(struct cuda_context *c, const struct solve_params *s,
                 struct cuda_module *m, struct err *e)
{
    struct pack_job p = {};

    p.layout = LAYOUT_CT; /* whose words are the packed codes */
    p.rows = s->rows;
    p.cols = s->cols;
    p.group = s->group;
    p.dtype = s->dtype;
    p.scale_dtype = s->scale_dtype;
    p.w = m->w;
    p.meta = m->meta;
    p.out = (uint32_t *)m->codes;
    return pack(c, &p, e);
}
