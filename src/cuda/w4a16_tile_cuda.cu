/* w4a16_tile_cuda.cu - products with 4-bit weights from the codes themselves.
 *
 * A block of threads computes tiles of 256 outputs by up to 64 rows of x: each
 * warp two strips of 16 outputs by all rows of the tile, by mma.m16n8k16 with
 * codes less their zero point, which are exact in f16 and bf16.  The sums of a
 * group are multiplied by its scale in f32.
 *
 * The codes of a warp come by asynchronous copies, STAGES - 1 blocks of places
 * ahead, into shared memory of its own.  Up to 8 rows each lane reads x from the
 * first-level cache, and warps do not wait for each other; more rows: x comes by
 * asynchronous copies, for all warps.
 *
 * All tiles' blocks of places, one tile after the other, are divided evenly among
 * the launch's blocks of threads.  Of a tile that several of them have parts of,
 * the last one to arrive adds the parts in their order, so that equal launches
 * give equal bytes.
 *
 * Floors: the codes' bytes up to 50 rows or so, then the tensor cores, of which
 * mma reaches about 62 % on Hopper. */
#include "cuda/mma.cuh"
#include "cuda/w4a16_internal.cuh"

enum {
    STAGES = 4,
    STRIPS = 2, /* of a warp */
    LEAST = 6   /* blocks of places for a block of threads to begin with */
};

/* w4_launch as the kernel takes it. */
struct tiles {
    struct w4_rows one;
    const struct w4_rows *many;
    int n;
    const void *x;
    void *y;
    int64_t ldx, ldy;
    int y_type;
    int outputs, strips, blocks, groups;
    uint32_t halves, inverse; /* ceil(2^32 / halves); 0: halves is 1 */
    int items;                /* tiles * blocks */
    float4 *parts;
    int *arrived; /* [tiles], 0 */
};

/* ---- numbers ---- */

/* Codes are added to a power of two whose last bit is worth 1. */
template <class T> struct codes_of;
template <> struct codes_of<__half> {
    typedef __half2 pair;
    static const uint32_t base = 0x64006400; /* 1024 */
};
template <> struct codes_of<__nv_bfloat16> {
    typedef __nv_bfloat162 pair;
    static const uint32_t base = 0x43004300; /* 128 */
};

template <class T>
static __device__ __forceinline__ uint32_t less(uint32_t a, uint32_t b)
{
    typedef typename codes_of<T>::pair pair;
    pair d = __hsub2(*(const pair *)&a, *(const pair *)&b);

    return *(const uint32_t *)&d;
}

/* word & 0x000f000f | base, which the compiler makes two instructions of. */
static __device__ __forceinline__ uint32_t masked(uint32_t word, uint32_t base)
{
    uint32_t to;

    asm("lop3.b32 %0, %1, %2, %3, 0xea;"
        : "=r"(to)
        : "r"(word), "r"(0x000f000f), "r"(base));
    return to;
}

/* The first operand of mma from a word: codes less zero[row r, row r + 8]. */
template <class T>
static __device__ __forceinline__ void operand(uint32_t a[4], uint32_t word,
                                               const uint32_t zero[2])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = less<T>(masked(word >> 4 * i, codes_of<T>::base), zero[i & 1]);
}

static __device__ __forceinline__ void
multiply_as(__nv_bfloat16, float d[4], const uint32_t a[4], const uint32_t b[2])
{
    multiply(d, a, b);
}

static __device__ __forceinline__ void
multiply_as(__half, float d[4], const uint32_t a[4], const uint32_t b[2])
{
    multiply_half(d, a, b);
}

static __device__ __forceinline__ void put(const struct tiles &a, int64_t at,
                                           float v)
{
    if (a.y_type == FORGE_W4A16_F32)
        ((float *)a.y)[at] = v;
    else if (a.y_type == FORGE_W4A16_F16)
        ((__half *)a.y)[at] = __float2half_rn(v);
    else
        ((__nv_bfloat16 *)a.y)[at] = __float2bfloat16_rn(v);
}

/* ---- shared memory ---- */

/* NT: eights of rows; HALVES: a scale for each half of a block. */
template <int NT, bool HALVES> struct room {
    struct {
        struct {
            uint4 codes[STRIPS][32];
            uint32_t meta[STRIPS][HALVES + 1][W4_STRIP];
        } stage[STAGES];
    } warp[W4_WARPS];
    /* 8 pieces of 16 bytes a row, those of odd rows in the order 4..7, 0..3, so
     * that lanes of two rows meet in no bank */
    uint4 x[NT > 1 ? STAGES : 1][NT > 1 ? NT * 8 : 1][8];
    bool last;
};

/* ---- a tile's part ---- */

/* What a block of threads works on: blocks begin..end-1 of a tile. */
struct part {
    struct w4_rows w;
    int begin, end;
    int row, rows; /* the tile's first row of the linear's, its number */
    int strip;     /* first one of the tile */
};

/* Number of item's, or part's, owner: block of threads b has the items from
 * items b / blocks on. */
static __device__ __forceinline__ int first_item(const struct tiles &a, int b)
{
    return (int)((int64_t)a.items * b / gridDim.x);
}

static __device__ __forceinline__ int owner(const struct tiles &a, int item)
{
    return (int)((((int64_t)item + 1) * gridDim.x - 1) / a.items);
}

/* The rows that tile belongs to: the last ones whose `before` is not beyond. */
static __device__ __forceinline__ struct w4_rows find(const struct tiles &a,
                                                      int tile)
{
    int low = 0, high = a.n;

    if (a.n == 1)
        return a.one;
    while (high - low > 1) {
        int mid = (low + high) / 2;

        if (a.many[mid].before <= tile)
            low = mid;
        else
            high = mid;
    }
    return a.many[low];
}

template <int NT>
static __device__ __forceinline__ struct part
part_of(const struct tiles &a, int tile, int begin, int end)
{
    struct part p = { find(a, tile), begin, end };
    int down = (p.w.rows + NT * 8 - 1) / (NT * 8), at = tile - p.w.before;

    p.row = at % down * NT * 8;
    p.rows = min(p.w.rows - p.row, NT * 8);
    p.strip = at / down * (W4_ACROSS / W4_STRIP);
    return p;
}

static __device__ __forceinline__ void copy_hot(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to),
                 "l"(from)
                 : "memory");
}

/* Where a thread reads the next block from; k: its number. */
template <class T, int NT, bool HALVES> struct feed {
    /* threads copy x's pieces of 16 bytes, EACH of them each */
    static const int EACH = NT < 4 ? 1 : NT / 4;
    typedef struct room<NT, HALVES> shared;
    const uint4 *codes[STRIPS];
    const uint32_t *meta; /* of group 0; first lanes only */
    const T *x[EACH];     /* rows that are not there: the last one */
    uint32_t codes_to, meta_to, x_to;
    uint32_t half; /* of meta */

    __device__ __forceinline__ feed(const struct tiles &a, const struct part &p,
                                    shared *m)
    {
        const int each = (HALVES + 1) * 4; /* copies of a strip's meta */
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        auto *to = &m->warp[warp].stage[0];
        int first = p.strip + warp * STRIPS, h = lane % each / 4;

#pragma unroll
        for (int s = 0; s < STRIPS; s++)
            codes[s] =
                p.w.codes + lane +
                ((int64_t)min(first + s, a.strips - 1) * a.blocks + p.begin) *
                    32;
        meta = p.w.meta + lane % 4 * 4 +
               (int64_t)min(first + lane / each, a.strips - 1) * a.groups *
                   W4_STRIP;
        codes_to = shared_address(&to->codes[0][lane]);
        meta_to =
            shared_address(&to->meta[lane / each % STRIPS][h][lane % 4 * 4]);
        half = 2 * p.begin + h;
        if constexpr (NT == 1) {
            x[0] = row_of(a, p, min(lane / 4, p.rows - 1)) + lane % 4 * 8;
        } else {
            int row = threadIdx.x / 8;

            x_to = shared_address(
                &m->x[0][row % (NT * 8)][threadIdx.x % 8 ^ (row & 1) * 4]);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                x[i] = row_of(a, p, min(row + i * 32, p.rows - 1)) +
                       threadIdx.x % 8 * 8;
        }
    }

    static __device__ __forceinline__ const T *
    row_of(const struct tiles &a, const struct part &p, int row)
    {
        return (const T *)a.x + (p.w.first + p.row + row) * a.ldx +
               p.begin * W4_PLACES;
    }

    /* Start the copies of a block. */
    __device__ __forceinline__ void bring(const struct tiles &a, int stage)
    {
        const uint32_t step = sizeof(shared::warp[0].stage[0]);

#pragma unroll
        for (int s = 0; s < STRIPS; s++) {
            copy_16(codes_to + stage * step + s * 512, codes[s], true);
            codes[s] += 32;
        }
        if (threadIdx.x % 32 < STRIPS * (HALVES + 1) * 4)
            copy_hot(meta_to + stage * step,
                     meta + (a.inverse ? __umulhi(half, a.inverse) : half) *
                                (uint64_t)W4_STRIP);
        half += 2;
#pragma unroll
        for (int i = 0; i < EACH && NT > 1; i++) {
            if (NT >= 4 || threadIdx.x < NT * 64)
                copy_16(x_to + stage * (NT * 8 * 128) + i * (32 * 128), x[i],
                        true);
            x[i] += W4_PLACES;
        }
    }

    /* Up to 8 rows: this lane's pieces of x. */
    __device__ __forceinline__ void read_x(uint4 to[2])
    {
        to[0] = __ldg((const uint4 *)x[0]);
        to[1] = __ldg((const uint4 *)(x[0] + W4_HALF));
        x[0] += W4_PLACES;
    }
};

/* Add the block of a stage: sums += codes times x; x: up to 8 rows, else in
 * shared memory.  totals += scale * sums, and sums = 0, where flush says so. */
template <class T, int NT, bool HALVES>
static __device__ __forceinline__ void
add_block(const struct room<NT, HALVES> *m, int at, const uint4 x[2],
          bool flush, float sums[STRIPS][NT][4], float totals[STRIPS][NT][4])
{
    const auto *from = &m->warp[threadIdx.x / 32].stage[at];
    int lane = threadIdx.x % 32, r = lane / 4;
    uint4 codes[STRIPS];

#pragma unroll
    for (int s = 0; s < STRIPS; s++)
        codes[s] = from->codes[s][lane];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t operands[STRIPS][2][4], meta[STRIPS][2];

#pragma unroll
        for (int s = 0; s < STRIPS; s++) {
            uint32_t zero[2];

#pragma unroll
            for (int i = 0; i < 2; i++) {
                meta[s][i] = from->meta[s][HALVES ? h : 0][r + 8 * i];
                zero[i] = (meta[s][i] & 15) * 0x00010001 + codes_of<T>::base;
            }
            operand<T>(operands[s][0], h ? codes[s].z : codes[s].x, zero);
            operand<T>(operands[s][1], h ? codes[s].w : codes[s].y, zero);
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint4 b = x[h];

            if constexpr (NT > 1)
                b = m->x[at][n * 8 + r][(4 * h + lane % 4) ^ (r & 1) * 4];
            const uint32_t low[2] = { b.x, b.y }, high[2] = { b.z, b.w };

#pragma unroll
            for (int s = 0; s < STRIPS; s++)
                multiply_as(T(), sums[s][n], operands[s][0], low);
#pragma unroll
            for (int s = 0; s < STRIPS; s++)
                multiply_as(T(), sums[s][n], operands[s][1], high);
        }
        if (HALVES || (h && flush))
#pragma unroll
            for (int s = 0; s < STRIPS; s++)
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float scale = __uint_as_float(meta[s][i / 2] & ~15u);

                        totals[s][n][i] =
                            fmaf(scale, sums[s][n][i], totals[s][n][i]);
                        sums[s][n][i] = 0;
                    }
    }
}

template <int NT> static __device__ __forceinline__ void meet(void)
{
    if (NT > 1)
        __syncthreads();
    else
        __syncwarp();
}

template <class T, int NT, bool HALVES>
static __device__ __forceinline__ void
add_blocks(const struct tiles &a, const struct part &p,
           struct room<NT, HALVES> *m, float totals[STRIPS][NT][4])
{
    const int UNROLL = NT > 2 ? 1 : STAGES;
    feed<T, NT, HALVES> f(a, p, m);
    float sums[STRIPS][NT][4] = {};
    int n = p.end - p.begin, group = a.halves / 2;
    int left = HALVES ? 0 : group - p.begin % group;
    uint4 x[2][2]; /* this block's and the next's, in turn */

    meet<NT>(); /* all have read what they had brought */
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < n)
            f.bring(a, i);
        copy_commit();
    }
    if (NT == 1)
        f.read_x(x[0]);
    for (int i = 0; i < n; i += UNROLL)
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int stage = NT > 2 ? i % STAGES : u;

            if (i + u == n)
                return;
            copy_wait<STAGES - 2>();
            meet<NT>();
            if (i + u + STAGES - 1 < n)
                f.bring(a, (stage + STAGES - 1) % STAGES);
            copy_commit();
            if (NT == 1 && i + u + 1 < n)
                f.read_x(x[(u + 1) % 2]);
            left--; /* few sums are cheaper than the question */
            add_block<T, NT, HALVES>(m, stage, x[u % 2],
                                     NT <= 2 || !left || i + u + 1 == n, sums,
                                     totals);
            left = left ? left : group;
        }
}

/* ---- results ---- */

/* Where block of threads b keeps its sums of a tile: its first one or its
 * last. */
template <int NT>
static __device__ __forceinline__ float4 *place_of(const struct tiles &a, int b,
                                                   int tile)
{
    int slot = first_item(a, b) / a.blocks != tile;

    return a.parts +
           ((int64_t)(b * 2 + slot) * W4_WARPS + threadIdx.x / 32) * STRIPS *
               NT * 32 +
           threadIdx.x % 32;
}

/* Give this block's part of the tile; true: it is the last of n, and totals are
 * the sum of all. */
template <int NT, bool HALVES>
static __device__ __forceinline__ bool gather(const struct tiles &a, int tile,
                                              struct room<NT, HALVES> *m,
                                              float totals[STRIPS][NT][4])
{
    int first = owner(a, tile * a.blocks);
    int last = owner(a, tile * a.blocks + a.blocks - 1);
    float4 *to = place_of<NT>(a, blockIdx.x, tile);

#pragma unroll
    for (int i = 0; i < STRIPS * NT; i++) {
        const float *t = totals[i / NT][i % NT];

        to[i * 32] = make_float4(t[0], t[1], t[2], t[3]);
    }
    __threadfence();
    __syncthreads();
    if (!threadIdx.x)
        m->last = atomicAdd(&a.arrived[tile], 1) == last - first;
    __syncthreads();
    if (!m->last)
        return false;
    __threadfence();
    for (int b = first; b <= last; b++) {
        const float4 *from = place_of<NT>(a, b, tile);

#pragma unroll
        for (int i = 0; i < STRIPS * NT; i++) {
            float4 v = __ldcg(from + i * 32);
            float *t = totals[i / NT][i % NT];

            t[0] = b == first ? v.x : t[0] + v.x;
            t[1] = b == first ? v.y : t[1] + v.y;
            t[2] = b == first ? v.z : t[2] + v.z;
            t[3] = b == first ? v.w : t[3] + v.w;
        }
    }
    if (!threadIdx.x)
        a.arrived[tile] = 0;
    return true;
}

template <int NT>
static __device__ __forceinline__ void
store_tile(const struct tiles &a, const struct part &p,
           const float totals[STRIPS][NT][4])
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
    for (int s = 0; s < STRIPS; s++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int o = (p.strip + warp * STRIPS + s) * W4_STRIP + lane / 4 +
                        i / 2 * 8;
                int row = n * 8 + lane % 4 * 2 + i % 2;

                if (o < a.outputs && row < p.rows)
                    put(a, (p.w.first + p.row + row) * a.ldy + o,
                        totals[s][n][i]);
            }
}

/* Blocks of threads of a multiprocessor, which bound the registers. */
#define RESIDENT(nt) ((nt) == 1 ? 4 : (nt) == 2 ? 3 : (nt) == 4 ? 2 : 1)

template <class T, int NT, bool HALVES>
static __global__ void __launch_bounds__(W4_WARPS * 32, RESIDENT(NT))
    tiles_kernel(const __grid_constant__ struct tiles a)
{
    extern __shared__ uint4 shared[];
    auto *m = (struct room<NT, HALVES> *)shared;
    int end = first_item(a, blockIdx.x + 1), next;

    for (int item = first_item(a, blockIdx.x); item < end; item = next) {
        int tile = item / a.blocks, begin = item - tile * a.blocks;
        float totals[STRIPS][NT][4] = {};
        struct part p;

        next = min(end, (tile + 1) * a.blocks);
        p = part_of<NT>(a, tile, begin, begin + next - item);
        add_blocks<T, NT, HALVES>(a, p, m, totals);
        if (p.end - p.begin == a.blocks ||
            gather<NT, HALVES>(a, tile, m, totals))
            store_tile<NT>(a, p, totals);
    }
}

/* ---- the host's part ---- */

template <class T, int NT, bool HALVES>
static int launch(struct cuda_context *c, struct tiles *a, struct err *e)
{
    auto kernel = tiles_kernel<T, NT, HALVES>;
    size_t shared = sizeof(struct room<NT, HALVES>);
    static int resident;
    int tiles = a->items / a->blocks, rc;
    int64_t grid;

    if (!resident) {
        CUDA_TRY(cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
        CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &resident, kernel, W4_WARPS * 32, shared));
        if (!resident)
            return err_set(e, E_CONFIG, "cuda: no room for 4-bit products");
    }
    grid = (int64_t)resident * c->processors;
    if (grid > (a->items + LEAST - 1) / LEAST)
        grid = (a->items + LEAST - 1) / LEAST;
    rc = buffer_need(c, &c->w4_parts,
                     (size_t)grid * 2 * W4_ACROSS * NT * 8 * sizeof(float), e);
    if (rc < 0)
        return rc;
    if (c->w4_arrived.cap < (size_t)tiles * sizeof(int)) {
        rc = buffer_need(c, &c->w4_arrived, (size_t)tiles * sizeof(int), e);
        if (rc < 0)
            return rc;
        CUDA_TRY(cudaMemsetAsync(c->w4_arrived.data, 0, c->w4_arrived.cap,
                                 c->stream));
    }
    a->parts = (float4 *)c->w4_parts.data;
    a->arrived = (int *)c->w4_arrived.data;
    kernel<<<(unsigned)grid, W4_WARPS * 32, shared, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

template <class T, bool HALVES>
static int by_rows(struct cuda_context *c, struct tiles *a, int most,
                   struct err *e)
{
    switch (most) {
    case 8: return launch<T, 1, HALVES>(c, a, e);
    case 16: return launch<T, 2, HALVES>(c, a, e);
    case 32: return launch<T, 4, HALVES>(c, a, e);
    default: return launch<T, 8, HALVES>(c, a, e);
    }
}

int w4_tiled(struct cuda_context *c, struct w4_launch *l, struct err *e)
{
    int64_t blocks = l->depth / W4_PLACES;
    bool odd = l->halves % 2 && l->groups > 1;
    struct tiles a = {
        l->one,
        l->many,
        l->n,
        l->x,
        l->y,
        l->ldx,
        l->ldy,
        l->y_type,
        (int)l->outputs,
        (int)((l->outputs + W4_STRIP - 1) / W4_STRIP),
        (int)blocks,
        (int)l->groups,
        (uint32_t)l->halves,
        l->halves > 1 ? (uint32_t)(((1ull << 32) + l->halves - 1) / l->halves) :
                        0,
    };

    /* __umulhi() is a division for numbers of less than 16 bits */
    if (blocks >= 1 << 15 || l->tiles >= INT32_MAX / blocks)
        return err_set(e, E_CONFIG, "cuda: a product too large");
    a.items = (int)(l->tiles * blocks);
    if (l->x_type == FORGE_W4A16_F16)
        return odd ? by_rows<__half, true>(c, &a, l->most, e) :
                     by_rows<__half, false>(c, &a, l->most, e);
    return odd ? by_rows<__nv_bfloat16, true>(c, &a, l->most, e) :
                 by_rows<__nv_bfloat16, false>(c, &a, l->most, e);
}
