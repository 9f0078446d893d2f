/* w4a16_tile_cuda.cu - products with 4-bit weights from the codes themselves.
 *
 * A block of threads computes tiles of 256 outputs by up to 64 rows of x: each
 * warp two strips of 16 outputs by all rows of the tile, by mma.m16n8k16 with
 * codes less their zero point, which are exact in f16 and bf16.  The sums of a
 * group are multiplied by its scale in f32.
 *
 * The codes of a warp come by asynchronous copies, STAGES - 1 steps of 128 places
 * ahead, into shared memory of its own.  Up to 8 rows each lane reads x from the
 * first-level cache, and warps do not wait for each other; more rows: x comes by
 * asynchronous copies, for all warps.
 *
 * All tiles' steps are divided evenly among the launch's blocks of threads
 * (w4a16_tiles.cuh).  On Hopper, which has 9 rows and more by w4a16_few_cuda.cu, a
 * cluster of blocks has each of a few tiles, and adds their sums from each other's
 * shared memory.
 *
 * Floors: the codes' bytes up to 50 rows or so, then the tensor cores, of which
 * mma reaches about 62 % on Hopper.  One H200, 8,192 x 28,672, one row: 37 to 39 us. */
#include "cuda/w4a16_tiles.cuh"

enum {
    STRIPS = 2,            /* of a warp */
    BLOCKS = 2,            /* of places in a step */
    QUARTERS = 2 * BLOCKS, /* of a step: 32 places, which share a scale */
    LEAST = 3              /* steps for a block of threads to begin with */
};

/* Steps in shared memory, and blocks of threads of a multiprocessor, which bound
 * the registers, for tiles of nt eights of rows. */
#define STAGES(nt)   ((nt) == 2 ? 3 : 4)
#define RESIDENT(nt) ((nt) <= 2 ? 3 : (nt) == 4 ? 2 : 1)

/* ---- numbers ---- */

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

/* ---- shared memory ---- */

/* NT: eights of rows; FINE: a scale for each quarter of a step. */
template <int NT, bool FINE> struct room {
    static const int scales = FINE ? QUARTERS : 1;
    struct {
        struct {
            uint4 codes[STRIPS][BLOCKS][32];
            uint32_t meta[STRIPS][scales][W4_STRIP];
        } stage[STAGES(NT)];
    } warp[W4_WARPS];
    /* 16 pieces of 16 bytes a row; of odd rows those of two quarters change
     * places, so that lanes of two rows meet in no bank */
    uint4 x[NT > 1 ? STAGES(NT) : 1][NT > 1 ? NT * 8 : 1][BLOCKS * 8];
    int last;
};

/* ---- a tile's part ---- */

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

/* Where a thread reads the next step from, and where it puts it. */
template <class T, int NT, bool FINE> struct feed {
    typedef struct room<NT, FINE> shared;
    /* pieces of x for a thread to copy */
    static const int EACH = NT * 8 * BLOCKS * 8 / (W4_WARPS * 32);
    const uint4 *codes[STRIPS];
    const uint32_t *meta;          /* of group 0; first lanes only */
    const T *x[NT > 1 ? EACH : 1]; /* rows that are not there: the last one */
    uint32_t codes_to, meta_to, x_to;
    uint32_t quarter; /* that meta is for */

    __device__ __forceinline__ feed(const struct tiles &a, const struct part &p,
                                    shared *m)
    {
        const int each = shared::scales * 4; /* copies of a strip's meta */
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        auto *to = &m->warp[warp].stage[0];
        int first = p.strip + warp * STRIPS, q = lane % each / 4;

#pragma unroll
        for (int s = 0; s < STRIPS; s++)
            codes[s] =
                p.w.codes + lane +
                ((int64_t)min(first + s, a.strips - 1) * a.steps + p.begin) *
                    (BLOCKS * 32);
        meta = p.w.meta + lane % 4 * 4 +
               (int64_t)min(first + lane / each, a.strips - 1) * a.groups *
                   W4_STRIP;
        codes_to = shared_address(&to->codes[0][0][lane]);
        meta_to =
            shared_address(&to->meta[lane / each % STRIPS][q][lane % 4 * 4]);
        quarter = QUARTERS * p.begin + q;
        if constexpr (NT == 1) {
            x[0] = row_of(a, p, min(lane / 4, p.rows - 1)) + lane % 4 * 8;
        } else {
            const int pieces = BLOCKS * 8;
            int row = threadIdx.x / pieces, piece = threadIdx.x % pieces;

            x_to = shared_address(&m->x[0][row][piece ^ (row & 1) * 4]);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                x[i] = row_of(a, p,
                              min(row + i * (W4_WARPS * 32 / pieces),
                                  p.rows - 1)) +
                       piece * 8;
        }
    }

    static __device__ __forceinline__ const T *
    row_of(const struct tiles &a, const struct part &p, int row)
    {
        return (const T *)a.x + (p.w.first + p.row + row) * a.ldx +
               p.begin * (BLOCKS * W4_PLACES);
    }

    /* Start the copies of a step. */
    __device__ __forceinline__ void bring(const struct tiles &a, int stage)
    {
        const uint32_t step = sizeof(shared::warp[0].stage[0]);
        const uint32_t x_step = sizeof(shared::x[0]);

#pragma unroll
        for (int s = 0; s < STRIPS; s++) {
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
                copy_16(codes_to + stage * step + (s * BLOCKS + b) * 512,
                        codes[s] + b * 32, true);
            codes[s] += BLOCKS * 32;
        }
        if (threadIdx.x % 32 < STRIPS * shared::scales * 4)
            copy_hot(meta_to + stage * step,
                     meta + w4_group(quarter, a.inverse) * (uint64_t)W4_STRIP);
        quarter += QUARTERS;
#pragma unroll
        for (int i = 0; i < EACH && NT > 1; i++) {
            copy_16(x_to + stage * x_step + i * (W4_WARPS * 32 * 16), x[i],
                    true);
            x[i] += BLOCKS * W4_PLACES;
        }
    }

    /* Up to 8 rows: this lane's pieces of x in a block. */
    __device__ __forceinline__ void read_x(uint4 to[2])
    {
        to[0] = __ldg((const uint4 *)x[0]);
        to[1] = __ldg((const uint4 *)(x[0] + W4_HALF));
        x[0] += W4_PLACES;
    }
};

/* sums += codes times x in quarter q of a step.  x: up to 8 rows, else in shared
 * memory. */
template <class T, int NT, bool FINE>
static __device__ __forceinline__ void
add_quarter(const struct room<NT, FINE> *m, int at, int q,
            const uint4 codes[STRIPS], const uint4 *x,
            const uint32_t zero[STRIPS][2], float sums[STRIPS][NT][4])
{
    /* eights of rows whose x is in registers: distance of dependent products */
    const int wide = NT == 8 ? 8 : 1;
    int lane = threadIdx.x % 32, r = lane / 4;
    uint32_t operands[2][STRIPS][4];

#pragma unroll
    for (int s = 0; s < STRIPS; s++) {
        w4_operand<T>(operands[0][s], q % 2 ? codes[s].y : codes[s].x, zero[s]);
        w4_operand<T>(operands[1][s], q % 2 ? codes[s].w : codes[s].z, zero[s]);
    }
#pragma unroll
    for (int first = 0; first < NT; first += wide) {
        uint4 b[wide];

#pragma unroll
        for (int n = 0; n < wide; n++)
            if constexpr (NT > 1)
                b[n] = m->x[at][(first + n) * 8 + r]
                           [(4 * q + lane % 4) ^ (r & 1) * 4];
            else
                b[n] = x[q % 2];
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int n = 0; n < wide; n++) {
                const uint32_t low[2] = { b[n].x, b[n].y };
                const uint32_t high[2] = { b[n].z, b[n].w };

#pragma unroll
                for (int s = 0; s < STRIPS; s++)
                    multiply_as(T(), sums[s][first + n], operands[j][s],
                                j ? high : low);
            }
    }
}

/* Add the step of a stage: totals += scale * (codes times x).  x: up to 8 rows,
 * of this step's first block; f reads on, but not beyond the last step. */
template <class T, int NT, bool FINE>
static __device__ __forceinline__ void
add_step(const struct room<NT, FINE> *m, int at, struct feed<T, NT, FINE> *f,
         uint4 x[2][2], bool last, float totals[STRIPS][NT][4])
{
    const auto *from = &m->warp[threadIdx.x / 32].stage[at];
    int lane = threadIdx.x % 32, r = lane / 4;
    float sums[STRIPS][NT][4] = {};
    uint32_t meta[STRIPS][2], zero[STRIPS][2];
    uint4 codes[STRIPS];

#pragma unroll
    for (int q = 0; q < QUARTERS; q++) {
        if (q % 2 == 0)
#pragma unroll
            for (int s = 0; s < STRIPS; s++)
                codes[s] = from->codes[s][q / 2][lane];
        if (NT == 1 && q % 2 == 0 && (!last || q / 2 + 1 < BLOCKS))
            f->read_x(x[(q / 2 + 1) % 2]);
        if (FINE || !q)
#pragma unroll
            for (int i = 0; i < STRIPS * 2; i++) {
                meta[i / 2][i % 2] = from->meta[i / 2][q][r + i % 2 * 8];
                zero[i / 2][i % 2] =
                    (meta[i / 2][i % 2] & 15) * 0x00010001 + w4_base<T>::base;
            }
        add_quarter<T, NT, FINE>(m, at, q, codes, x[q / 2 % 2], zero, sums);
        if (!FINE && q + 1 < QUARTERS)
            continue;
#pragma unroll
        for (int i = 0; i < STRIPS * NT * 4; i++) {
            int s = i / (NT * 4), n = i / 4 % NT;

            totals[s][n][i % 4] =
                fmaf(__uint_as_float(meta[s][i % 4 / 2] & ~15u),
                     sums[s][n][i % 4], totals[s][n][i % 4]);
            sums[s][n][i % 4] = 0;
        }
    }
}

template <int NT> static __device__ __forceinline__ void sharers_meet(void)
{
    if (NT > 1)
        __syncthreads();
    else
        __syncwarp();
}

template <class T, int NT, bool FINE>
static __device__ __forceinline__ void
add_steps(const struct tiles &a, const struct part &p, struct room<NT, FINE> *m,
          float totals[STRIPS][NT][4])
{
    const int stages = STAGES(NT), unroll = NT > 2 ? 1 : stages;
    struct feed<T, NT, FINE> f(a, p, m);
    int n = p.end - p.begin;
    uint4 x[2][2]; /* of this block and the next, in turn */

    sharers_meet<NT>(); /* all have read what they had brought */
#pragma unroll
    for (int i = 0; i < stages - 1; i++) {
        if (i < n)
            f.bring(a, i);
        copy_commit();
    }
    if (NT == 1)
        f.read_x(x[0]);
    for (int i = 0; i < n; i += unroll)
#pragma unroll
        for (int u = 0; u < unroll; u++) {
            int stage = NT > 2 ? i % stages : u;

            if (i + u == n)
                return;
            copy_wait<stages - 2>();
            sharers_meet<NT>();
            if (i + u + stages - 1 < n)
                f.bring(a, (stage + stages - 1) % stages);
            copy_commit();
            add_step<T, NT, FINE>(m, stage, &f, x, i + u + 1 == n, totals);
        }
}

/* ---- results ---- */

/* A thread's four sums of a strip and of eight rows of x. */
static __device__ __forceinline__ void store(const struct tiles &a,
                                             const struct part &p, int strip,
                                             int eight, const float sum[4])
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int o =
            (p.strip + warp * STRIPS + strip) * W4_STRIP + lane / 4 + i / 2 * 8;
        int row = eight * 8 + lane % 4 * 2 + i % 2;

        if (o < a.outputs && row < p.rows)
            put(a, (p.w.first + p.row + row) * a.ldy + o, sum[i]);
    }
}

template <class T, int NT, bool FINE>
static __global__ void __launch_bounds__(W4_WARPS * 32, RESIDENT(NT))
    tiles_kernel(const __grid_constant__ struct tiles a)
{
    extern __shared__ uint4 shared[];
    auto *m = (struct room<NT, FINE> *)shared;
    int end = first_item(a, blockIdx.x + 1), next;

    for (int item = first_item(a, blockIdx.x); item < end; item = next) {
        int tile = item / a.steps, begin = item - tile * a.steps;
        float totals[STRIPS][NT][4] = {};
        struct part p;

        next = min(end, (tile + 1) * a.steps);
        p = part_of<NT>(a, tile, begin, begin + next - item);
        add_steps<T, NT, FINE>(a, p, m, totals);
        if (p.end - p.begin == a.steps ||
            gather<STRIPS * NT>(
                a, 0, blockIdx.x, tile, STRIPS * NT, threadIdx.x, &m->last,
                [&](int i) { return totals[i / NT][i % NT]; },
                [] { __syncthreads(); }))
#pragma unroll
            for (int i = 0; i < STRIPS * NT; i++)
                store(a, p, i / NT, i % NT, totals[i / NT][i % NT]);
    }
}

/* A cluster of blocks of threads for each tile of up to 8 rows, whose steps they share.
 * Sums are added in their order, fours of each thread by one of them. */
template <class T, bool FINE>
static __global__ void __launch_bounds__(W4_WARPS * 32, RESIDENT(1))
    clusters_kernel(const __grid_constant__ struct tiles a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint4 shared[];
    auto *m = (struct room<1, FINE> *)shared;
    float4 *own = (float4 *)shared + threadIdx.x;
    int ranks = cluster_size(), rank = cluster_rank();
    struct part p = part_of<1>(a, blockIdx.x / ranks, rank * a.steps / ranks,
                               (rank + 1) * a.steps / ranks);
    float totals[STRIPS][1][4] = {};

    add_steps<T, 1, FINE>(a, p, m, totals);
    __syncthreads(); /* all have read their steps */
#pragma unroll
    for (int i = 0; i < STRIPS; i++) {
        const float *t = totals[i][0];

        own[i * W4_WARPS * 32] = make_float4(t[0], t[1], t[2], t[3]);
    }
    cluster_meet();
    for (int i = rank; i < STRIPS; i += ranks) {
        float4 sum =
            sum_of_ranks(shared_address(own + i * W4_WARPS * 32), ranks);

        store(a, p, i, 0, (const float *)&sum);
    }
    cluster_meet(); /* the others may still read what this one has */
#endif
}

/* ---- the host's part ---- */

/* Queue clusters for tiles of up to 8 rows, if they pay: *done. */
template <class T, bool FINE>
static int by_clusters(struct cuda_context *c, const struct tiles *a,
                       int64_t grid, bool *done, struct err *e)
{
    auto kernel = clusters_kernel<T, FINE>;
    const int tiles = a->items / a->steps;
    static int fit[MOST_RANKS + 1];
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t how = {};
    int ranks, rc;

    how.blockDim = dim3(W4_WARPS * 32);
    how.dynamicSmemBytes = sizeof(struct room<1, FINE>);
    how.stream = c->stream;
    if (!w4_wgmma_runs(c))
        return 0;
    if ((rc = cluster_ranks((const void *)kernel, how, tiles, a->steps, fit,
                            &ranks, e)) < 0)
        return rc;
    *done = clusters_pay(a, tiles, ranks, grid);
    if (!*done)
        return 0;
    cluster_shape(&how, &cluster, tiles, ranks);
    CUDA_TRY(cudaLaunchKernelEx(&how, kernel, *a));
    LAUNCHED();
    return 0;
}

template <class T, int NT, bool FINE>
static int launch(struct cuda_context *c, struct tiles *a, struct err *e)
{
    auto kernel = tiles_kernel<T, NT, FINE>;
    size_t shared = sizeof(struct room<NT, FINE>);
    static int resident;
    bool done = false;
    int64_t grid;
    int rc = 0;

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
    if constexpr (NT == 1)
        rc = by_clusters<T, FINE>(c, a, grid, &done, e);
    if (rc < 0 || done)
        return rc;
    if ((rc = tiles_divide(c, a, 0, grid, 1, STRIPS * NT, e)) < 0)
        return rc;
    kernel<<<(unsigned)grid, W4_WARPS * 32, shared, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

template <class T, bool FINE>
static int by_rows(struct cuda_context *c, struct tiles *a, int most,
                   struct err *e)
{
    switch (most) {
    case 8: return launch<T, 1, FINE>(c, a, e);
    case 16: return launch<T, 2, FINE>(c, a, e);
    case 32: return launch<T, 4, FINE>(c, a, e);
    default: return launch<T, 8, FINE>(c, a, e);
    }
}

/* A scale for each quarter of a step. */
static bool is_fine(const struct w4_launch *l)
{
    return l->halves % QUARTERS && l->groups > 1;
}

int w4_most(const struct cuda_context *c, const struct w4_launch *l,
            int64_t rows)
{
    static const size_t shared[2][4] = {
        { sizeof(room<1, false>), sizeof(room<2, false>),
          sizeof(room<4, false>), sizeof(room<8, false>) },
        { sizeof(room<1, true>), sizeof(room<2, true>), sizeof(room<4, true>),
          sizeof(room<8, true>) }
    };
    int i = rows <= 8 ? 0 : rows <= 16 ? 1 : rows <= 32 ? 2 : 3;

    while (i && shared[is_fine(l)][i] > (size_t)c->shared_memory)
        i--;
    return 8 << i;
}

int w4_tiled(struct cuda_context *c, struct w4_launch *l, struct err *e)
{
    bool fine = is_fine(l);
    struct tiles a;
    int rc = tiles_of(l, BLOCKS * W4_PLACES, &a, e);

    if (rc < 0)
        return rc;
    if (l->x_type == FORGE_W4A16_F16)
        return fine ? by_rows<__half, true>(c, &a, l->most, e) :
                      by_rows<__half, false>(c, &a, l->most, e);
    return fine ? by_rows<__nv_bfloat16, true>(c, &a, l->most, e) :
                  by_rows<__nv_bfloat16, false>(c, &a, l->most, e);
}
