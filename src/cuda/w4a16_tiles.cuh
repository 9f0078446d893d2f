/* w4a16_tiles.cuh - how 4-bit products by tiles are divided among blocks of
 * threads.  Each takes whole tiles, then a share of the steps of the others, one
 * tile after the other.  Of a tile that several of them have parts of, the last
 * one to arrive adds the parts in their order, so that equal launches give equal
 * bytes. */
#ifndef FORGE_CUDA_W4A16_TILES_CUH
#define FORGE_CUDA_W4A16_TILES_CUH

#include "cuda/hopper.cuh"
#include "cuda/mma.cuh"
#include "cuda/w4a16_internal.cuh"
#include "cuda/wgmma.cuh"

/* w4_launch as the kernel takes it. */
struct tiles {
    struct w4_rows one;
    const struct w4_rows *many;
    int n;
    const void *x;
    void *y;
    int64_t ldx, ldy;
    int y_type;
    const float *unit; /* factors of rows' sums, or NULL */
    int outputs, strips, steps, groups;
    int halves;       /* of a group */
    uint32_t inverse; /* w4_inverse() */
    int whole;        /* tiles that are not divided, the first ones */
    int items;        /* steps of the others */
    int share, more;  /* first_item() */
    int blocks;       /* that share them */
    float4 *parts;
    int *arrived; /* [tiles that are divided], 0 */
};

/* y[at] = v */
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

/* Two results in y's type, of 16 bits. */
static __device__ __forceinline__ uint32_t two(const struct tiles &a, float low,
                                               float high)
{
    __half2 h;

    if (a.y_type == FORGE_W4A16_BF16)
        return pack_bf16(low, high);
    h = __floats2half2_rn(low, high);
    return *(const uint32_t *)&h;
}

/* What a block of threads works on: steps begin..end-1 of a tile. */
struct part {
    struct w4_rows w;
    int begin, end;
    int row, rows; /* the tile's first row of the linear's, its number */
    int strip;     /* first one of the tile */
};

/* Items are steps of the tiles that are divided; block b of those that share them
 * has the ones from first_item(b) on: each `share` of them, the first `more` one
 * more. */
static __device__ __forceinline__ int first_item(const struct tiles &a, int b)
{
    return b * a.share + min(b, a.more);
}

static __device__ __forceinline__ int owner(const struct tiles &a, int item)
{
    int most = a.more * (a.share + 1);

    return item < most ? item / (a.share + 1) :
                         a.more + (item - most) / a.share;
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

/* A tile may have parts that are added each for itself, `rank` of a cluster of
 * blocks of threads.  Where this thread keeps sums of block b, of a tile that it
 * begins with, or of a later one: N times 4 floats of a thread, 32 float4 apart. */
template <int N>
static __device__ __forceinline__ float4 *
place_of(const struct tiles &a, int rank, int b, bool later, int thread)
{
    return a.parts +
           ((int64_t)((rank * a.blocks + b) * 2 + later) * W4_WARPS +
            thread / 32) *
               N * 32 +
           thread % 32;
}

/* Give the part that this block has of a divided tile; true: it is the last one, and
 * the sums are those of all.  `sums`: function of i < N, pointer to 4 of the thread's
 * sums, of which the first n count, or a few more; last: in shared memory; meet:
 * waits for the other threads. */
template <int N, class Sums, class Meet>
static __device__ __forceinline__ bool
gather(const struct tiles &a, int rank, int block, int tile, int n, int thread,
       int *last, Sums sums, Meet meet)
{
    const int some = N < 8 ? N : 8; /* that are read at once */
    int begin = (tile - a.whole) * a.steps, first = owner(a, begin);
    int parts = owner(a, begin + a.steps - 1) - first + 1;
    bool later = first_item(a, first) < begin; /* for the first */
    int *arrived = a.arrived + rank * (a.items / a.steps) + (tile - a.whole);
    float4 *to = place_of<N>(a, rank, block, later && block == first, thread);

#pragma unroll
    for (int i = 0; i < N && i < n; i += some)
#pragma unroll
        for (int k = i; k < i + some; k++) {
            const float *t = sums(k);

            to[k * 32] = make_float4(t[0], t[1], t[2], t[3]);
        }
    __threadfence();
    meet();
    if (!thread)
        *last = atomicAdd(arrived, 1) == parts - 1;
    meet();
    if (!*last)
        return false;
    __threadfence();
#pragma unroll(N <= 2 ? 4 : 1)
    for (int b = first; b < first + parts; b++) {
        const float4 *from =
            place_of<N>(a, rank, b, later && b == first, thread);

#pragma unroll
        for (int i = 0; i < N && i < n; i += some) {
            float4 v[some];

#pragma unroll
            for (int k = 0; k < some; k++)
                v[k] = __ldcg(from + (i + k) * 32);
#pragma unroll
            for (int k = 0; k < some; k++) {
                float *t = sums(i + k);

                t[0] = b == first ? v[k].x : t[0] + v[k].x;
                t[1] = b == first ? v[k].y : t[1] + v[k].y;
                t[2] = b == first ? v[k].z : t[2] + v[k].z;
                t[3] = b == first ? v[k].w : t[3] + v[k].w;
            }
        }
    }
    if (!thread)
        *arrived = 0;
    return true;
}

/* ---- clusters ---- */

enum { MOST_RANKS = 8 /* blocks of threads of a cluster that share a tile */ };

/* The sum of what the cluster's blocks of threads have at `at`, in their order. */
static __device__ __forceinline__ float4 sum_of_ranks(uint32_t at, int ranks)
{
    float4 part[MOST_RANKS] = {}, sum = {};

#pragma unroll
    for (int r = 0; r < MOST_RANKS; r++)
        if (r < ranks)
            part[r] = load_from(at, r);
#pragma unroll
    for (int r = 0; r < MOST_RANKS; r++)
        if (r < ranks) {
            sum.x += part[r].x;
            sum.y += part[r].y;
            sum.z += part[r].z;
            sum.w += part[r].w;
        }
    return sum;
}

/* ---- the host's part ---- */

/* A map of the launch's x, in boxes of W4_PLACES places by `rows` rows. */
static inline int map_of_x(CUtensorMap *map, const struct w4_launch *l,
                           int rows, struct err *e)
{
    struct tensor_shape x = {};

    x.p = l->x;
    x.dims[0] = (uint64_t)l->depth;
    x.dims[1] = 1;
    x.dims[2] = (uint64_t)l->rows;
    x.strides[0] = x.strides[1] = (uint64_t)l->ldx * 2;
    x.box = (uint32_t)rows;
    return tensor_map(map, &x, e);
}

/* y has 16 bits, and 8 outputs of a row are 16 aligned bytes. */
static inline bool y_is_wide(const struct w4_launch *l)
{
    return l->y_type != FORGE_W4A16_F32 && l->outputs % 8 == 0 &&
           l->ldy % 8 == 0 && (uintptr_t)l->y % 16 == 0;
}

/* A launch of clusters of `ranks` blocks of threads, one for each tile. */
static inline void cluster_shape(cudaLaunchConfig_t *how,
                                 cudaLaunchAttribute *cluster, int tiles,
                                 int ranks)
{
    cluster->id = cudaLaunchAttributeClusterDimension;
    cluster->val.clusterDim = { (unsigned)ranks, 1, 1 };
    how->attrs = cluster;
    how->numAttrs = 1;
    how->gridDim = dim3((unsigned)(tiles * ranks));
}

/* *ranks: how many blocks of threads a cluster for each tile may have, so that all of
 * them run at once; 1: tiles are too many.  how: of the launch otherwise; fit:
 * clusters of so many blocks that run at once, 1 more, of this kernel; 0: unknown. */
static inline int cluster_ranks(const void *kernel, cudaLaunchConfig_t how,
                                int tiles, int steps, int fit[MOST_RANKS + 1],
                                int *ranks, struct err *e)
{
    cudaLaunchAttribute cluster = {};

    for (*ranks = MOST_RANKS; *ranks > 1; --*ranks) {
        if (!fit[*ranks]) {
            cluster_shape(&how, &cluster, tiles, *ranks);
            CUDA_TRY(cudaFuncSetAttribute(
                kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                (int)how.dynamicSmemBytes));
            CUDA_TRY(
                cudaOccupancyMaxActiveClusters(&fit[*ranks], kernel, &how));
            fit[*ranks]++;
        }
        if (tiles < fit[*ranks] && steps >= *ranks)
            break;
    }
    return 0;
}

/* Whether these clusters are hardly fewer blocks of threads than `grid`, or those would
 * have few steps each, so that adding sums counts most. */
static inline bool clusters_pay(const struct tiles *a, int tiles, int ranks,
                                int64_t grid)
{
    const int few = 8;

    return ranks > 1 &&
           (a->items <= few * grid || 10 * tiles * ranks >= 8 * grid);
}

/* What l says, in tiles of steps of `places`. */
static inline int tiles_of(const struct w4_launch *l, int places,
                           struct tiles *a, struct err *e)
{
    *a = {};
    a->one = l->one;
    a->many = l->many;
    a->n = l->n;
    a->x = l->x;
    a->y = l->y;
    a->ldx = l->ldx;
    a->ldy = l->ldy;
    a->y_type = l->y_type;
    a->unit = l->unit;
    a->outputs = (int)l->outputs;
    a->strips = (int)((l->outputs + W4_STRIP - 1) / W4_STRIP);
    a->steps = (int)(l->depth / places);
    a->groups = (int)l->groups;
    a->halves = (int)l->halves;
    a->inverse = w4_inverse(l->halves);
    if (l->tiles >= INT32_MAX / a->steps)
        return err_set(e, E_CONFIG, "cuda: a product too large");
    a->items = l->tiles * a->steps;
    return 0;
}

/* Divide the tiles behind the first `whole` among `grid` clusters of `ranks` blocks
 * of threads, which keep n times 4 sums a thread. */
static inline int tiles_divide(struct cuda_context *c, struct tiles *a,
                               int whole, int64_t grid, int ranks, int n,
                               struct err *e)
{
    size_t parts = (size_t)grid * 2 * W4_WARPS * 32 * sizeof(float4), arrived;
    int rc = buffer_need(c, &c->w4_parts, parts * ranks * n, e);

    if (rc < 0)
        return rc;
    a->whole = whole;
    a->items -= whole * a->steps;
    arrived = (size_t)(a->items / a->steps) * ranks * sizeof(int);
    if (c->w4_arrived.cap < arrived) {
        if ((rc = buffer_need(c, &c->w4_arrived, arrived, e)) < 0)
            return rc;
        CUDA_TRY(cudaMemsetAsync(c->w4_arrived.data, 0, c->w4_arrived.cap,
                                 c->stream));
    }
    a->share = (int)(a->items / grid);
    a->more = (int)(a->items % grid);
    a->blocks = (int)grid;
    a->parts = (float4 *)c->w4_parts.data;
    a->arrived = (int *)c->w4_arrived.data;
    return 0;
}

#endif
