/* w4a16_wgmma_cuda.cu - products with 4-bit weights and many rows of x, by Hopper's
 * asynchronous products.  Needs sm_90a.
 *
 * Two blocks of threads, a cluster, compute tiles of 256 outputs by 256 rows of x, 128
 * outputs each, one tile after the other.  Warp group 0 only copies steps of 64 places,
 * STAGES in flight, the next tile's behind those of this one: one thread half of the
 * rows to both blocks, two warps codes and scales.  Groups 1 and 2 have 64 outputs each,
 * a warp one strip of 16.  Its codes become weights in registers (w4a16_weights.cuh),
 * the first operand of products whose second one is x in shared memory; while 32 places
 * are multiplied, the next 32 are converted.
 *
 * Tiles that would leave multiprocessors without work are divided (w4a16_tiles.cuh).
 * Blocks of threads that run at once share rows and outputs: DOWN tiles of rows by
 * about 32 of outputs, which the L2 cache holds.
 *
 * Shared memory: 185 KiB of steps, 8 of results.  Floor: the tensor cores'. */
#include "cuda/w4a16_tiles.cuh"
#include "cuda/w4a16_weights.cuh"

#include <stddef.h>

/* A block's threads: a warp group that copies, two that multiply.  Their
 * registers must fit what a block begins with, 168 a thread. */
enum {
    GROUP = 128,
    EATERS = 2 * GROUP,
    THREADS = GROUP + EATERS,
    COPY_REGISTERS = 40,
    MULTIPLY_REGISTERS = 232
};

enum {
    RANKS = 2,            /* blocks of threads of a cluster */
    STRIPS = EATERS / 32, /* of a block's tile: one of a warp */
    COPIERS = 2,          /* warps that copy codes, and scales of a half */
    ROWS = 256,           /* of x, of a tile */
    BOX = 64,             /* rows of a copy */
    STAGES = 5,
    ROW_BYTES = W4_PLACES * 2, /* in a step: the width of the swizzle */
    X_BYTES = ROWS * ROW_BYTES,
    BOX_BYTES = BOX * ROW_BYTES,
    CODE_BYTES = STRIPS * 512,
    META_BYTES = STRIPS * W4_STRIP * 4, /* of a half */
    DOWN = 4,    /* tiles of rows that follow one another */
    PATCH = 32,  /* rows of a warp's results on their way */
    LEAST = 8,   /* steps for a block of threads to begin with */
    GATHER = 48, /* steps that may be lost rather than to divide tiles */
    MEET = 1     /* barrier of the groups that multiply */
};

struct room {
    uint16_t x[STAGES][ROWS][W4_PLACES];
    uint4 codes[STAGES][STRIPS][32];
    uint32_t meta[STAGES][2][STRIPS][W4_STRIP]; /* of both halves */
    /* rows of 16 outputs; 8 outputs p of row r at piece p ^ r / 4 % 2 */
    uint4 patch[STRIPS][PATCH][2];
};

/* Barriers: a step is there, has been read. */
struct shared {
    uint64_t full[STAGES], empty[STAGES];
    int last;
};

/* ---- tiles ---- */

/* Steps begin..end-1 of a tile.  Tiles of a linear: DOWN of its rows, by all
 * outputs, then the next DOWN.  The part's outputs are those of one rank. */
static __device__ __forceinline__ struct part
part_of(const struct tiles &a, int tile, int begin, int end)
{
    struct part p = { find(a, tile), begin, end };
    int across = (a.strips + RANKS * STRIPS - 1) / (RANKS * STRIPS);
    int down = (p.w.rows + ROWS - 1) / ROWS, at = tile - p.w.before;
    int first = at / (DOWN * across) * DOWN, n = min(down - first, DOWN);

    at -= first * across;
    p.row = (first + at % n) * ROWS;
    p.rows = min(p.w.rows - p.row, (int)ROWS);
    p.strip = (at / n * RANKS + cluster_rank()) * STRIPS;
    return p;
}

/* A cluster's parts, one after the other. */
struct walk {
    int tile;      /* next whole one */
    int item, end; /* of the tiles that are divided */
};

static __device__ __forceinline__ struct walk walk_begin(const struct tiles &a)
{
    int b = blockIdx.x / RANKS;

    return { b, first_item(a, b), first_item(a, b + 1) };
}

/* False: there is no other part. */
static __device__ __forceinline__ bool
walk_on(const struct tiles &a, struct walk *w, struct part *p, int *tile)
{
    int begin, n;

    if (w->tile < a.whole) {
        *tile = w->tile;
        *p = part_of(a, *tile, 0, a.steps);
        w->tile += gridDim.x / RANKS;
        return true;
    }
    if (w->item >= w->end)
        return false;
    *tile = a.whole + w->item / a.steps;
    begin = w->item % a.steps;
    n = min(w->end - w->item, a.steps - begin);
    *p = part_of(a, *tile, begin, begin + n);
    w->item += n;
    return true;
}

/* ---- steps ---- */

/* Where steps lie and what guards them, as addresses in shared memory; the stage of
 * the step that comes next, and how often its barriers have ended, modulo 2. */
struct ring {
    uint32_t room, full, empty;
    uint32_t stage, phase;

    /* Addresses that lanes of a warp give each other are not computed anew at each
     * use. */
    __device__ __forceinline__ ring(const struct room *m,
                                    const struct shared *s)
    {
        room = __shfl_sync(~0u, shared_address(m), 0);
        full = __shfl_sync(~0u, shared_address(s->full), 0);
        empty = full + (uint32_t)offsetof(struct shared, empty);
        stage = phase = 0;
    }

    __device__ __forceinline__ void next(void)
    {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        phase ^= stage == 0;
    }

    __device__ __forceinline__ void wait_full(void) const
    {
        barrier_wait(full + stage * 8, (int)phase);
    }

    __device__ __forceinline__ void wait_empty(void) const
    {
        barrier_wait(empty + stage * 8, (int)phase ^ 1);
    }
};

/* ---- the warps that copy ---- */

/* This block's share of x, by one thread. */
[[maybe_unused]] static __device__ __forceinline__ void
copy_x(const struct tiles &a, const CUtensorMap *map, struct ring r)
{
    int rank = cluster_rank(), tile;
    struct walk w = walk_begin(a);
    struct part p;

    while (walk_on(a, &w, &p, &tile))
#pragma unroll 1
        for (int n = p.begin; n < p.end; n++, r.next()) {
            uint32_t full = r.full + r.stage * 8;
            int boxes = (p.rows + BOX - 1) / BOX;

            r.wait_empty();
            barrier_expect(full, boxes * BOX_BYTES);
            for (int b = rank; b < boxes; b += RANKS)
                copy_box_to_both(r.room + r.stage * X_BYTES + b * BOX_BYTES,
                                 map, full, n * W4_PLACES, 0,
                                 (int)p.w.first + p.row + b * BOX);
        }
}

/* Codes of STRIPS / COPIERS strips, and scales and zero points of a half, by warp
 * `warp`. */
[[maybe_unused]] static __device__ __forceinline__ void
copy_codes(const struct tiles &a, int warp, struct ring r)
{
    const int each = STRIPS / COPIERS;
    int lane = threadIdx.x % 32, tile;
    uint32_t codes_to = r.room + (uint32_t)offsetof(struct room, codes) +
                        warp * each * 512 + w4_place(lane) * 16;
    uint32_t meta_to = r.room + (uint32_t)offsetof(struct room, meta) +
                       warp * META_BYTES + lane * 16;
    struct walk w = walk_begin(a);
    struct part p;

    while (walk_on(a, &w, &p, &tile)) {
        const uint4 *from[each];
        const uint32_t *meta = p.w.meta + lane % 4 * 4 +
                               (int64_t)min(p.strip + lane / 4, a.strips - 1) *
                                   a.groups * W4_STRIP;

#pragma unroll
        for (int i = 0; i < each; i++) {
            /* strips that are not there: the last one */
            int strip = min(p.strip + warp * each + i, a.strips - 1);

            from[i] =
                p.w.codes + lane + ((int64_t)strip * a.steps + p.begin) * 32;
        }
#pragma unroll 1
        for (int n = p.begin; n < p.end; n++, r.next()) {
            r.wait_empty();
#pragma unroll
            for (int i = 0; i < each; i++, from[i - 1] += 32)
                copy_16(codes_to + r.stage * CODE_BYTES + i * 512, from[i],
                        true);
            copy_16(meta_to + r.stage * 2 * META_BYTES,
                    meta +
                        w4_group(2 * n + warp, a.inverse) * (uint64_t)W4_STRIP,
                    true);
            barrier_copies(r.full + r.stage * 8);
        }
    }
}

/* ---- the groups that multiply ---- */

/* sum += a part's products of a warp group with N rows of x, by the warp of a
 * strip.  Scales become operands where a group begins: what is computed here takes power
 * that the tensor cores could use. */
template <class T, bool SPLIT, int N>
static __device__ __forceinline__ void
multiply_part(const struct tiles &a, const struct part &p, int strip, int lane,
              struct ring *r, float (&sum)[128])
{
    const uint64_t x = operand(r->room, 16, 1024);
    const uint32_t codes =
        r->room + (uint32_t)offsetof(struct room, codes) + strip * 512;
    const uint32_t meta = r->room + (uint32_t)offsetof(struct room, meta) +
                          strip * W4_STRIP * 4 + lane / 4 * 4;
    const struct order order(lane);
    uint32_t before = 0, word[2][2], w[2][2][4];  /* of a half, of the next */
    int left = a.halves - 2 * p.begin % a.halves; /* of the group */
    scaling<T, SPLIT> s;
    uint2 v[4];

    r->wait_full();
    order.read(codes + r->stage * CODE_BYTES, v);
    order.arrange(v, word);
    s.read(meta + r->stage * 2 * META_BYTES);
#pragma unroll 1
    for (int n = p.begin; n < p.end; n++) {
        uint64_t b = operand_behind(x, r->stage * (X_BYTES / 16));
        uint32_t here = r->empty + r->stage * 8;
        uint32_t scales = meta + r->stage * 2 * META_BYTES;

        r->next();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (!left) {
                s.read(scales + h * META_BYTES);
                left = a.halves;
            }
            left--;
            s.weights(w[h], word[h]);
            hold(w[h][0]);
            hold(w[h][1]);
            hold(sum);
            products_begin();
#pragma unroll
            for (int k = 0; k < 2; k++)
                group_multiply_across<w4_base<T>::half, N>(
                    sum, w[h][k], b + (2 * h + k) * (16 * 2 / 16), true);
            products_commit();
            if (!h && n + 1 < p.end) {
                r->wait_full();
                order.read(codes + r->stage * CODE_BYTES, v);
            }
            if (h)
                order.arrange(v, word);
            products_wait<1>(); /* those before have read their weights */
            hold(w[h ^ 1][0]);
            hold(w[h ^ 1][1]);
            hold(sum);
            if (!h && n > p.begin && lane < RANKS)
                barrier_arrive_at(before, lane);
        }
        before = here;
    }
    products_wait<0>();
    hold(sum);
    if (lane < RANKS)
        barrier_arrive_at(before, lane);
}

/* ---- results ---- */

/* A warp's sums in the rows' units. */
[[maybe_unused]] static __device__ __forceinline__ void
apply_units(const struct tiles &a, const struct part &p, int lane,
            float (&sum)[128])
{
    const float *unit = a.unit + p.w.first + p.row;

#pragma unroll
    for (int i = 0; i < 64; i++) {
        int row = i / 2 * 8 + lane % 4 * 2 + i % 2;
        float u = unit[min(row, p.rows - 1)];

        sum[i / 2 * 4 + i % 2] *= u;
        sum[i / 2 * 4 + i % 2 + 2] *= u;
    }
}

/* A warp's 16 outputs from o on to y of 16 bits, 32 bytes of a row at a time. */
[[maybe_unused]] static __device__ __forceinline__ void
store_wide(const struct tiles &a, const struct part &p, int o, int lane,
           uint4 (*patch)[2], const float (&sum)[128])
{
    int row = lane / 16 * 8 + lane % 8, piece = lane / 8 % 2;
    uint16_t *y = (uint16_t *)a.y + (p.w.first + p.row) * a.ldy + o;
    uint32_t to = shared_address(&patch[row][piece ^ row / 4 % 2]);

#pragma unroll
    for (int r0 = 0; r0 < ROWS; r0 += PATCH) {
        if (r0 >= p.rows)
            break;
#pragma unroll
        for (int n = 0; n < PATCH; n += 16) {
            const float *f = &sum[(r0 + n) / 2];
            uint32_t v[4];

#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = two(a, f[2 * i], f[2 * i + 1]);
            store_transposed(to + n * (int)sizeof(patch[0]), v);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < PATCH; i += 16) {
            int r = i + lane / 2, at = lane % 2;

            if (r0 + r < p.rows && o + at * 8 < a.outputs)
                *(uint4 *)(y + (r0 + r) * a.ldy + at * 8) =
                    patch[r][at ^ r / 4 % 2];
        }
        __syncwarp();
    }
}

[[maybe_unused]] static __device__ __forceinline__ void
store_each(const struct tiles &a, const struct part &p, int o, int lane,
           const float (&sum)[128])
{
#pragma unroll
    for (int i = 0; i < 128; i++) {
        int output = o + i / 2 % 2 * 8 + lane / 4;
        int row = i / 4 * 8 + lane % 4 * 2 + i % 2;

        if (output < a.outputs && row < p.rows)
            put(a, (p.w.first + p.row + row) * a.ldy + output, sum[i]);
    }
}

template <class T, bool SPLIT>
static __device__ __forceinline__ void
multiply_parts(const struct tiles &a, bool wide, struct ring r,
               struct shared *s, struct room *m)
{
    int thread = __shfl_sync(~0u, threadIdx.x - GROUP, threadIdx.x % 32);
    int lane = thread % 32, strip = thread / 32;
    struct walk w = walk_begin(a);
    struct part p;
    int tile;

    while (walk_on(a, &w, &p, &tile)) {
        int o = (p.strip + strip) * W4_STRIP;
        float sum[128];

#pragma unroll
        for (int i = 0; i < 128; i++)
            sum[i] = 0;
        if (p.rows > 192)
            multiply_part<T, SPLIT, 256>(a, p, strip, lane, &r, sum);
        else if (p.rows > 128)
            multiply_part<T, SPLIT, 192>(a, p, strip, lane, &r, sum);
        else if (p.rows > 64)
            multiply_part<T, SPLIT, 128>(a, p, strip, lane, &r, sum);
        else
            multiply_part<T, SPLIT, 64>(a, p, strip, lane, &r, sum);
        if (p.end - p.begin < a.steps &&
            !gather<32>(
                a, cluster_rank(), blockIdx.x / RANKS, tile, (p.rows + 7) / 8,
                thread, &s->last, [&](int i) { return &sum[4 * i]; },
                [] { meet(MEET, EATERS); }))
            continue;
        if (a.unit)
            apply_units(a, p, lane, sum);
        if (wide)
            store_wide(a, p, o, lane, m->patch[strip], sum);
        else
            store_each(a, p, o, lane, sum);
    }
}

/* wide: y_is_wide().  Grid: as many blocks as run at once. */
template <class T, bool SPLIT>
static __global__ void __launch_bounds__(THREADS, 1)
    w4_wgmma_kernel(const __grid_constant__ struct tiles a,
                    const __grid_constant__ CUtensorMap x, bool wide)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ char memory[];
    __shared__ struct shared s;
    struct room *m =
        (struct room *)(((uintptr_t)memory + 1023) & ~(uintptr_t)1023);
    int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared_address(&s.full[i]), 1 + COPIERS * 32);
            barrier_init(shared_address(&s.empty[i]), RANKS * EATERS / 32);
        }
        barriers_made();
    }
    cluster_meet();
    if (warp < GROUP / 32) {
        registers_fewer<COPY_REGISTERS>();
        struct ring r(m, &s);
        if (threadIdx.x == 0)
            copy_x(a, &x, r);
        else if (warp && warp <= COPIERS)
            copy_codes(a, warp - 1, r);
    } else {
        registers_more<MULTIPLY_REGISTERS>();
        multiply_parts<T, SPLIT>(a, wide, { m, &s }, &s, m);
    }
    cluster_meet(); /* the other block may still copy to this one */
#endif
}

/* ---- the host's part ---- */

bool w4_wgmma_runs(const struct cuda_context *c)
{
    static int known; /* a process has one context; 1: no, 2: yes */

    if (!known)
        known =
            1 + (hopper_has(c, (const void *)w4_wgmma_kernel<__half, false>) &&
                 (int)sizeof(struct room) + 2048 <= c->shared_memory);
    return known == 2;
}

void w4_wgmma_tile(struct w4_launch *l)
{
    l->most = ROWS;
    l->across = RANKS * STRIPS * W4_STRIP;
}

template <class T, bool SPLIT>
static int launch(struct cuda_context *c, const struct w4_launch *l,
                  struct tiles *a, struct err *e)
{
    const auto kernel = w4_wgmma_kernel<T, SPLIT>;
    const int bytes = (int)sizeof(struct room) + 1024;
    int grid = c->processors / RANKS, rest = l->tiles % grid;
    int whole = l->tiles - rest, rc;
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t how = {};
    CUtensorMap map;

    if ((rc = map_of_x(&map, l, BOX, e)) < 0)
        return rc;
    if (whole && rest && a->steps * (grid - rest) / grid > GATHER)
        whole -= grid; /* a share is a tile at least, so parts are few */
    else if (whole)
        whole = l->tiles;
    if (!whole && grid > (a->items + LEAST - 1) / LEAST)
        grid = (a->items + LEAST - 1) / LEAST;
    if ((rc = tiles_divide(c, a, whole, grid, RANKS, 32, e)) < 0)
        return rc;
    CUDA_TRY(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    how.gridDim = dim3((unsigned)(grid * RANKS));
    how.blockDim = dim3(THREADS);
    how.dynamicSmemBytes = (size_t)bytes;
    how.stream = c->stream;
    how.attrs = &cluster;
    how.numAttrs = 1;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = { RANKS, 1, 1 };
    CUDA_TRY(cudaLaunchKernelEx(&how, kernel, *a, map, y_is_wide(l)));
    LAUNCHED();
    return 0;
}

int w4_wgmma(struct cuda_context *c, const struct w4_launch *l, struct err *e)
{
    struct tiles a;
    int rc = tiles_of(l, W4_PLACES, &a, e);

    if (rc < 0)
        return rc;
    if (l->x_type == FORGE_W4A16_F16)
        return l->split ? launch<__half, true>(c, l, &a, e) :
                          launch<__half, false>(c, l, &a, e);
    return l->split ? launch<__nv_bfloat16, true>(c, l, &a, e) :
                      launch<__nv_bfloat16, false>(c, l, &a, e);
}
