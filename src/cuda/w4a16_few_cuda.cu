/* w4a16_few_cuda.cu - products with 4-bit weights and few rows of x, by Hopper's
 * asynchronous products; weights stay exact.  Needs sm_90a.
 *
 * A block of threads computes tiles of 256 outputs by N = 16, 32 or 64 rows of x.  Warp
 * group 0 copies steps of 128 places, as many in flight as shared memory holds: codes,
 * and scales with zero points, by all its threads, x by one.  Four warp groups
 * multiply, each 64 outputs, a warp one strip of 16: codes less their zero point, which
 * are exact in f16 and bf16, are first operands in registers (w4a16_weights.cuh), x in
 * shared memory is the second one.  The sums of a group of places are multiplied by its
 * scale in f32.
 *
 * SHARES = 2, for few tiles: a tile has 128 outputs, and two warp groups each half of a
 * step's places for 64 of them.  A cluster of blocks has each of a few tiles, and adds
 * their sums from each other's shared memory; else all tiles' steps are divided evenly
 * (w4a16_tiles.cuh).
 *
 * Floors: the codes' bytes, and 20 cycles of a scheduler to make operands of 256. */
#include "cuda/w4a16_tiles.cuh"
#include "cuda/w4a16_weights.cuh"

#include <stddef.h>

/* A block's threads: a warp group that copies, four that multiply.  Their registers
 * must fit what a block begins with, 96 a thread. */
enum {
    GROUP = 128,
    EATERS = 4 * GROUP,
    THREADS = GROUP + EATERS,
    COPY_REGISTERS = 24,
    MULTIPLY_REGISTERS = 112,
    HALF = EATERS / 2 /* threads that give parts of a divided tile together */
};

enum {
    WARPS = EATERS / 32,
    COPIERS = GROUP / 32,
    BLOCKS = 2, /* of places in a step */
    QUARTERS = 2 * BLOCKS,
    BLOCK_BYTES = 512,         /* of a strip's codes */
    ROW_BYTES = W4_PLACES * 2, /* of x, in a block: the width of the swizzle */
    META_BYTES = W4_STRIP * 4, /* of a strip's group */
    LEAST = 3,                 /* steps for a block of threads to begin with */
    MEET = 1 /* barriers of those that multiply, and of halves */
};

/* FINE: a scale for each quarter of a step. */
template <int N, bool FINE, int SHARES> struct room {
    static const int strips = WARPS / SHARES;
    static const int scales = FINE ? QUARTERS : 1;
    static const int stages = N == 64 ? (SHARES == 1 ? 6 : 8) :
                              N == 32 ? (SHARES == 1 ? 8 : 12) :
                                        (SHARES == 1 ? 9 : 14);
    struct {
        uint16_t x[BLOCKS][N][W4_PLACES];
        uint4 codes[strips][BLOCKS][32]; /* at w4_place() of their lane */
    } step[stages];
    uint32_t meta[stages][strips][scales][W4_STRIP];
};

/* Barriers: a step is there, has been read. */
template <int STAGES> struct barriers {
    uint64_t full[STAGES], empty[STAGES];
    int last[2]; /* of gather() */
};

/* ---- tiles ---- */

template <int N, int SHARES>
static __device__ __forceinline__ struct part
part_of(const struct tiles &a, int tile, int begin, int end)
{
    struct part p = { find(a, tile), begin, end };
    int down = (p.w.rows + N - 1) / N, at = tile - p.w.before;

    p.row = at % down * N;
    p.rows = min(p.w.rows - p.row, (int)N);
    p.strip = at / down * (WARPS / SHARES);
    return p;
}

/* The steps of a block of threads, of all tiles one after the other: items. */
struct walk {
    int item, end;

    __device__ __forceinline__ walk(const struct tiles &a)
    {
        int ranks = cluster_size(), rank = cluster_rank();
        int first = blockIdx.x / ranks * a.steps;

        item = ranks == 1 ? first_item(a, blockIdx.x) :
                            first + rank * a.steps / ranks;
        end = ranks == 1 ? first_item(a, blockIdx.x + 1) :
                           first + (rank + 1) * a.steps / ranks;
    }

    /* Those of the next tile; false: there is none. */
    template <int N, int SHARES>
    __device__ __forceinline__ bool on(const struct tiles &a, int *tile,
                                       struct part *p)
    {
        int begin, n;

        if (item >= end)
            return false;
        *tile = item / a.steps;
        begin = item - *tile * a.steps;
        n = min(end - item, a.steps - begin);
        item += n;
        *p = part_of<N, SHARES>(a, *tile, begin, begin + n);
        return true;
    }
};

/* ---- the group that copies ---- */

/* Codes of some strips and their scales by each warp, x by the first. */
template <int N, bool FINE, int SHARES>
static __device__ __forceinline__ void
copy_steps(const struct tiles &a, const CUtensorMap *map,
           struct room<N, FINE, SHARES> *m,
           struct barriers<room<N, FINE, SHARES>::stages> *s, int warp)
{
    typedef struct room<N, FINE, SHARES> room_t;
    const int each = room_t::strips / COPIERS;
    const int at_once = 8 / each; /* quarters whose scales lanes copy */
    int lane = threadIdx.x % 32, stage = 0, phase = 1, tile;
    int own = lane / 4 % each, quarter = lane / 4 / each;
    struct walk w(a);
    struct part p;

    while (w.on<N, SHARES>(a, &tile, &p)) {
        /* strips that are not there: the last one */
        int first = min(p.strip + warp * each, a.strips - 1);
        int last = min((int)each, a.strips - first) - 1;
        uint32_t strip_bytes = a.steps * BLOCKS * BLOCK_BYTES;
        const char *codes =
            (const char *)p.w.codes + lane * 16 +
            ((int64_t)first * a.steps + p.begin) * (BLOCKS * BLOCK_BYTES);
        const uint32_t *meta =
            p.w.meta + lane % 4 * 4 +
            (int64_t)(first + min(own, last)) * a.groups * W4_STRIP;

#pragma unroll 1
        for (int k = p.begin; k < p.end; k++) {
            uint32_t full = shared_address(&s->full[stage]);

            barrier_wait(shared_address(&s->empty[stage]), phase);
            if (!warp && !lane) {
                barrier_expect(full, sizeof(m->step[0].x));
#pragma unroll
                for (int b = 0; b < BLOCKS; b++)
                    copy_box(shared_address(m->step[stage].x[b]), map, full,
                             (k * BLOCKS + b) * W4_PLACES, 0,
                             (int)p.w.first + p.row);
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < each; i++) {
                const char *from = codes + min(i, last) * strip_bytes;
                uint32_t to =
                    shared_address(m->step[stage].codes[warp * each + i]) +
                    w4_place(lane) * 16;

#pragma unroll
                for (int b = 0; b < BLOCKS; b++)
                    copy_16(to + b * BLOCK_BYTES, from + b * BLOCK_BYTES, true);
            }
            codes += BLOCKS * BLOCK_BYTES;
#pragma unroll
            for (int q = 0; q < room_t::scales; q += at_once)
                if (q + quarter < room_t::scales)
                    copy_16(
                        shared_address(
                            m->meta[stage][warp * each + own][q + quarter]) +
                            lane % 4 * 16,
                        meta + w4_group(QUARTERS * k + q + quarter, a.inverse) *
                                   (uint64_t)W4_STRIP,
                        true);
            barrier_copies(full);
            if (++stage == room_t::stages) {
                stage = 0;
                phase ^= 1;
            }
        }
    }
}

/* ---- the groups that multiply ---- */

/* What a warp has of the step that comes next: its share's words of the first block
 * and, if it has one scale, that and the zero point.  Where steps lie: addresses in
 * shared memory, this lane's; lanes of a warp give each other those that all have. */
template <int N, bool FINE, int SHARES> struct feed {
    typedef struct room<N, FINE, SHARES> room_t;
    static const int step = sizeof(room_t::step[0]);
    uint32_t room, codes, meta, full, stage, phase;
    struct order order;
    uint2 words[4];
    uint32_t group[2]; /* of the lane's two rows */

    __device__ __forceinline__ feed(const room_t *m, const uint64_t *barriers,
                                    int strip, int share, int lane)
        : order(lane)
    {
        room = __shfl_sync(~0u, shared_address(m), 0);
        full = __shfl_sync(~0u, shared_address(barriers), 0);
        codes = room + (uint32_t)offsetof(room_t, step[0].codes) +
                (strip * BLOCKS + share) * BLOCK_BYTES;
        meta = room + (uint32_t)offsetof(room_t, meta) +
               (strip * room_t::scales + (FINE ? share * 2 : 0)) * META_BYTES +
               lane / 4 * 4;
        stage = phase = 0;
    }

    __device__ __forceinline__ void next(void)
    {
        stage = stage + 1 == room_t::stages ? 0 : stage + 1;
        phase ^= stage == 0;
    }

    __device__ __forceinline__ void read_words(int block)
    {
        order.read(codes + stage * step + block * BLOCK_BYTES, words);
    }

    __device__ __forceinline__ void read_group(int quarter)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            group[i] =
                load_shared(meta + stage * (uint32_t)sizeof(room_t::meta[0]) +
                            quarter * META_BYTES + i * 32);
    }

    __device__ __forceinline__ void wait(void)
    {
        barrier_wait(full + stage * 8, (int)phase);
        read_words(0);
        if (!FINE)
            read_group(0);
    }

    __device__ __forceinline__ uint32_t empty(void) const
    {
        return full + (room_t::stages + stage) * 8;
    }
};

/* total += a part's products, by a warp. */
template <class T, int N, bool FINE, int SHARES>
static __device__ __forceinline__ void
multiply_part(const struct part &p, struct feed<N, FINE, SHARES> *f, int share,
              int lane, float (&total)[N / 2])
{
    const int blocks = BLOCKS / SHARES;
    const uint64_t x =
        operand(f->room + (SHARES > 1 ? share * N * ROW_BYTES : 0), 16, 1024);
    float sum[N / 2], scale[2];
    uint32_t zero[2], w[2][2][4]; /* operands of a half, of the next */

    f->wait();
#pragma unroll 1
    for (int k = p.begin; k < p.end; k++) {
        uint64_t b = operand_behind(x, f->stage * (f->step / 16));
        uint32_t empty = f->empty();

#pragma unroll
        for (int n = 0; n < blocks; n++) {
            uint32_t word[2][2];

            f->order.arrange(f->words, word);
            if (n + 1 < blocks)
                f->read_words(n + 1);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                bool first = FINE || (!n && !h);
                bool ends = n == blocks - 1 && h;

                if (FINE)
                    f->read_group(2 * n + h);
#pragma unroll
                for (int i = 0; i < 2 && first; i++) {
                    zero[i] =
                        (f->group[i] & 15) * 0x00010001 + w4_base<T>::base;
                    scale[i] = __uint_as_float(f->group[i] & ~15u);
                }
#pragma unroll
                for (int i = 0; i < 2; i++)
                    w4_operand<T>(w[h][i], word[h][i], zero);
                hold(w[h][0]);
                hold(w[h][1]);
                hold(sum);
                products_begin();
#pragma unroll
                for (int i = 0; i < 2; i++)
                    group_multiply_across<w4_base<T>::half, N>(
                        sum, w[h][i],
                        b + n * (N * ROW_BYTES / 16) + (2 * h + i) * 2,
                        !first || i);
                products_commit();
                if (ends) {
                    f->next();
                    if (k + 1 < p.end)
                        f->wait();
                }
                if (FINE || ends) {
                    products_wait<0>();
                    hold(sum);
                    if (ends && !lane)
                        barrier_arrive(empty);
#pragma unroll
                    for (int i = 0; i < N / 2; i++)
                        total[i] = fmaf(scale[i % 4 / 2], sum[i], total[i]);
                } else {
                    products_wait<1>();
                }
                hold(w[h ^ 1][0]);
                hold(w[h ^ 1][1]);
                hold(sum);
            }
        }
    }
}

/* ---- results ---- */

/* A lane's four sums of a strip and of eight rows of x.  wide: lanes of neighbouring
 * outputs exchange sums, so that each stores two outputs of a row at once. */
static __device__ __forceinline__ void store(const struct tiles &a,
                                             const struct part &p, bool wide,
                                             int strip, int eight, float4 sum)
{
    int lane = threadIdx.x % 32, o = (p.strip + strip) * W4_STRIP + lane / 4;
    int row = eight * 8 + lane % 4 * 2;
    int64_t at = (p.w.first + p.row + row) * a.ldy + o;

    if (wide) {
        bool odd = lane & 4; /* has the second of the two rows then */
        float here = __shfl_xor_sync(~0u, odd ? sum.x : sum.y, 4);
        float below = __shfl_xor_sync(~0u, odd ? sum.z : sum.w, 4);
        uint16_t *y = (uint16_t *)a.y + (odd ? at + a.ldy - 1 : at);

        if (row + odd < p.rows && o < a.outputs)
            *(uint32_t *)y = odd ? two(a, here, sum.y) : two(a, sum.x, here);
        if (row + odd < p.rows && o + 8 < a.outputs)
            *(uint32_t *)(y + 8) =
                odd ? two(a, below, sum.w) : two(a, sum.z, below);
        return;
    }
    const float v[] = { sum.x, sum.y, sum.z, sum.w };
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (o + i / 2 * 8 < a.outputs && row + i % 2 < p.rows)
            put(a, at + i % 2 * a.ldy + i / 2 * 8, v[i]);
}

static __device__ __forceinline__ float4 four(const float *t)
{
    return make_float4(t[0], t[1], t[2], t[3]);
}

/* Add the shares' sums of a tile, then those of the cluster's blocks of threads, through
 * shared memory that nobody reads steps from any more, and store them.  thread: of those
 * that multiply; the threads of a share have the same outputs in the same order. */
template <int N, int SHARES>
static __device__ __forceinline__ void
add_and_store(const struct tiles &a, const struct part &p, bool wide, int strip,
              int thread, float4 *room, float (&total)[N / 2])
{
    const int sharers = EATERS / SHARES;
    int share = thread / sharers, ranks = cluster_size();
    float4 *own = room + thread % sharers;

    if (share)
#pragma unroll
        for (int i = 0; i < N / 8; i++)
            own[i * sharers] = four(&total[4 * i]);
    if (SHARES > 1)
        meet(MEET, EATERS);
    if (!share)
#pragma unroll
        for (int i = 0; i < N / 8; i++) {
            float4 sum = four(&total[4 * i]);

            if (SHARES > 1) {
                float4 v = own[i * sharers];

                sum.x += v.x;
                sum.y += v.y;
                sum.z += v.z;
                sum.w += v.w;
            }
            if (ranks > 1)
                own[i * sharers] = sum;
            else
                store(a, p, wide, strip, i, sum);
        }
    if (ranks == 1)
        return;
    cluster_meet();
    for (int i = cluster_rank() * SHARES + share; i < N / 8;
         i += ranks * SHARES)
        store(a, p, wide, strip, i,
              sum_of_ranks(shared_address(own + i * sharers), ranks));
    cluster_meet(); /* the others may still read what this one has */
}

/* wide: y_is_wide().  A cluster, or a block of threads if SHARES > 1, has one tile. */
template <class T, int N, bool FINE, int SHARES>
static __global__ void __launch_bounds__(THREADS, 1)
    w4_few_kernel(const __grid_constant__ struct tiles a,
                  const __grid_constant__ CUtensorMap x, bool wide)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef struct room<N, FINE, SHARES> room_t;
    extern __shared__ char memory[];
    __shared__ struct barriers<room_t::stages> s;
    auto *m = (room_t *)(((uintptr_t)memory + 1023) & ~(uintptr_t)1023);
    int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    int thread = threadIdx.x - GROUP, half = thread / HALF, tile;
    int strip = (warp - COPIERS) % room_t::strips;
    bool alone = SHARES > 1 || cluster_size() > 1;
    float total[N / 2] = {};
    struct part p;

    if (threadIdx.x == 0) {
        for (int i = 0; i < room_t::stages; i++) {
            barrier_init(shared_address(&s.full[i]), 1 + GROUP);
            barrier_init(shared_address(&s.empty[i]), WARPS);
        }
        barriers_made();
    }
    __syncthreads();
    if (warp < COPIERS) {
        registers_fewer<COPY_REGISTERS>();
        copy_steps<N, FINE, SHARES>(a, &x, m, &s, warp);
        if (cluster_size() > 1) { /* as add_and_store() */
            cluster_meet();
            cluster_meet();
        }
        return;
    }
    registers_more<MULTIPLY_REGISTERS>();
    int share = (warp - COPIERS) / room_t::strips;
    struct feed<N, FINE, SHARES> f(m, s.full, strip, share, thread % 32);
    struct walk w(a);

    while (w.on<N, SHARES>(a, &tile, &p)) {
        multiply_part<T, N, FINE, SHARES>(p, &f, share, thread % 32, total);
        if (alone)
            break;
        if (p.end - p.begin == a.steps ||
            gather<N / 8>(
                a, half, blockIdx.x, tile, N / 8, thread % HALF, &s.last[half],
                [&](int i) { return &total[4 * i]; },
                [&] { meet(MEET + half, HALF); }))
#pragma unroll
            for (int i = 0; i < N / 8; i++)
                store(a, p, wide, strip, i, four(&total[4 * i]));
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            total[i] = 0;
    }
    if (!alone)
        return;
    meet(MEET, EATERS); /* all have read their steps */
    add_and_store<N, SHARES>(a, p, wide, strip, thread, (float4 *)m, total);
#endif
}

/* ---- the host's part ---- */

bool w4_few_runs(const struct cuda_context *c)
{
    static int known; /* a process has one context; 1: no, 2: yes */

    if (!known)
        known =
            1 +
            (hopper_has(c, (const void *)w4_few_kernel<__half, 64, true, 1>) &&
             (int)sizeof(struct room<64, true, 1>) + 2048 <= c->shared_memory);
    return known == 2;
}

template <class T, int N, bool FINE, int SHARES>
static cudaLaunchConfig_t launch_of(const struct cuda_context *c)
{
    cudaLaunchConfig_t how = {};

    static_assert(sizeof(struct room<N, FINE, SHARES>) + 2048 <= 227 << 10,
                  "more than a block of threads has on Hopper");
    how.blockDim = dim3(THREADS);
    how.dynamicSmemBytes = sizeof(struct room<N, FINE, SHARES>) + 1024;
    how.stream = c->stream;
    return how;
}

/* Clusters for each of so many tiles; all kernels here have the same. */
static int ranks_of(struct cuda_context *c, int64_t tiles, int64_t steps,
                    int *ranks, struct err *e)
{
    static int fit[MOST_RANKS + 1];

    return cluster_ranks((const void *)w4_few_kernel<__half, 64, true, 1>,
                         launch_of<__half, 64, true, 1>(c),
                         (int)(tiles < INT32_MAX ? tiles : INT32_MAX),
                         (int)steps, fit, ranks, e);
}

int w4_few_tile(struct cuda_context *c, struct w4_launch *l, int64_t rows,
                bool one, struct err *e)
{
    const int wide = WARPS * W4_STRIP, narrow = wide / 2;
    int64_t steps = l->depth / (BLOCKS * W4_PLACES), down, tiles[2];
    int ranks[2], rc;

    l->most = rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
    l->across = wide;
    down = (rows + l->most - 1) / l->most;
    tiles[0] = down * ((l->outputs + wide - 1) / wide);
    tiles[1] = down * ((l->outputs + narrow - 1) / narrow);
    if (!one || tiles[1] > c->processors)
        return 0;
    if ((rc = ranks_of(c, tiles[0], steps, &ranks[0], e)) < 0 ||
        (rc = ranks_of(c, tiles[1], steps, &ranks[1], e)) < 0)
        return rc;
    /* larger clusters exchange more, which counts with 64 rows */
    if (tiles[1] * ranks[1] > tiles[0] * ranks[0] ||
        (l->most == 64 && ranks[0] > 5))
        l->across = narrow;
    return 0;
}

template <class T, int N, bool FINE, int SHARES>
static int launch(struct cuda_context *c, const struct w4_launch *l,
                  struct tiles *a, struct err *e)
{
    const auto kernel = w4_few_kernel<T, N, FINE, SHARES>;
    cudaLaunchConfig_t how = launch_of<T, N, FINE, SHARES>(c);
    cudaLaunchAttribute cluster;
    int grid = c->processors, ranks, rc;
    CUtensorMap map;

    if ((rc = map_of_x(&map, l, N, e)) < 0 ||
        (rc = ranks_of(c, l->tiles, a->steps, &ranks, e)) < 0)
        return rc;
    if (grid > (a->items + LEAST - 1) / LEAST)
        grid = (a->items + LEAST - 1) / LEAST;
    if (ranks > 1 && (SHARES > 1 || clusters_pay(a, l->tiles, ranks, grid))) {
        cluster_shape(&how, &cluster, l->tiles, ranks);
    } else {
        if (SHARES > 1 || (l->tiles <= grid && 10 * l->tiles >= 8 * grid))
            grid = l->tiles;
        how.gridDim = dim3((unsigned)grid);
        if ((rc = tiles_divide(c, a, 0, grid, 2, N / 8, e)) < 0)
            return rc;
    }
    CUDA_TRY(cudaFuncSetAttribute(kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)how.dynamicSmemBytes));
    CUDA_TRY(cudaLaunchKernelEx(&how, kernel, *a, map, y_is_wide(l)));
    LAUNCHED();
    return 0;
}

template <class T, bool FINE, int SHARES>
static int by_rows(struct cuda_context *c, const struct w4_launch *l,
                   struct tiles *a, struct err *e)
{
    switch (l->most) {
    case 16: return launch<T, 16, FINE, SHARES>(c, l, a, e);
    case 32: return launch<T, 32, FINE, SHARES>(c, l, a, e);
    default: return launch<T, 64, FINE, SHARES>(c, l, a, e);
    }
}

template <class T, bool FINE>
static int by_shares(struct cuda_context *c, const struct w4_launch *l,
                     struct tiles *a, struct err *e)
{
    return l->across < WARPS * W4_STRIP ? by_rows<T, FINE, 2>(c, l, a, e) :
                                          by_rows<T, FINE, 1>(c, l, a, e);
}

int w4_few(struct cuda_context *c, const struct w4_launch *l, struct err *e)
{
    bool fine = l->halves % QUARTERS && l->groups > 1;
    struct tiles a;
    int rc = tiles_of(l, BLOCKS * W4_PLACES, &a, e);

    if (rc < 0)
        return rc;
    if (l->x_type == FORGE_W4A16_F16)
        return fine ? by_shares<__half, true>(c, l, &a, e) :
                      by_shares<__half, false>(c, l, &a, e);
    return fine ? by_shares<__nv_bfloat16, true>(c, l, &a, e) :
                  by_shares<__nv_bfloat16, false>(c, l, &a, e);
}
