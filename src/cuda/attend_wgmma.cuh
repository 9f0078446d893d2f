/* attend_wgmma.cuh - of forward_attend_wgmma_cuda.cu, which see: tiles in shared
 * memory, and the warp groups that multiply them. */
#ifndef FORGE_CUDA_ATTEND_WGMMA_CUH
#define FORGE_CUDA_ATTEND_WGMMA_CUH

#include "cuda/forward_internal.cuh"
#include "cuda/mma.cuh"
#include "cuda/wgmma.cuh"

/* A block's threads: a warp group that copies, two that multiply.  Their
 * registers must fit what a block begins with, 168 a thread. */
enum {
    GROUP = 128, /* threads of a warp group */
    GROUPS = 2,  /* that multiply, each SHARE queries */
    EATERS = GROUPS * GROUP,
    THREADS = GROUP + EATERS,
    SHARE = ATTEND_QUERIES / GROUPS,
    COPY_REGISTERS = 40,
    MULTIPLY_REGISTERS = 232,
    TURN = 1,            /* named barriers: each group's, for its turn, */
    MEET = TURN + GROUPS /* and one of both */
};

enum {
    KEYS = 128,
    STAGES = 2, /* tiles of keys, and of values, in shared memory */
    PANEL = 64, /* columns: 128 bytes, the width of the swizzle */
    PANEL_ROW = PANEL * 2
};

/* Tiles in shared memory, as panels. */
template <int DQ, int DV> struct room {
    bf16 q[DQ / PANEL][ATTEND_QUERIES][PANEL];
    bf16 k[STAGES][DQ / PANEL][KEYS][PANEL];
    bf16 v[STAGES][DV / PANEL][KEYS][PANEL];
};

struct job {
    struct attend_block b;
    int head; /* -1: there are no more jobs */
};

/* Barriers: a job and its queries, keys, values are there; they have been read. */
struct shared {
    uint64_t q, q_free;
    uint64_t k[STAGES], k_free[STAGES], v[STAGES], v_free[STAGES];
    struct job job;
};

/* The keys of a job: positions from begin on, in so many tiles. */
struct reach {
    int begin, tiles, last;
};

static __device__ __forceinline__ struct reach
reach_of(const struct attend_args &a, const struct attend_block &b)
{
    struct reach r;

    r.begin = a.window && b.first >= a.window ?
                  (b.first - (int)a.window + 1) / KEYS * KEYS :
                  0;
    r.last = b.first + b.n - 1;
    r.tiles = (r.last - r.begin) / KEYS + 1;
    return r;
}

/* ---- steps of a tile ---- */

/* Start s = the scores of 64 queries with KEYS keys; q, k: operands. */
template <int DQ>
static __device__ __forceinline__ void scores(float (&s)[KEYS / 2], uint64_t q,
                                              uint64_t k)
{
    const int q_panel = ATTEND_QUERIES * PANEL_ROW / 16;
    const int k_panel = KEYS * PANEL_ROW / 16;

    hold(s);
    products_begin();
#pragma unroll
    for (int d = 0; d < DQ / 16; d++)
        group_multiply(s, q + d / 4 * q_panel + d % 4 * 2,
                       k + d / 4 * k_panel + d % 4 * 2, d > 0);
    products_commit();
    hold(s);
}

/* Start out += p v. */
template <int DV>
static __device__ __forceinline__ void
values(float (&out)[DV / 2], uint32_t (&p)[KEYS / 4], uint64_t v)
{
    hold(out);
    hold(p);
    products_begin();
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++)
        group_multiply(out, &p[4 * j], v + j * PANEL_ROW);
    products_commit();
    hold(out);
}

/* Causal and window mask: scores of keys that a query does not see become
 * -1e30.  k0: position of the tile's first key; at: position of the thread's
 * upper query (the lower is 8 behind). */
static __device__ __forceinline__ void mask(float (&s)[KEYS / 2], int lane,
                                            int k0, int at, int64_t window)
{
    int low = window ? (int)max(at - window, (int64_t)INT32_MIN / 2) : 0;

#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        int key = k0 + i / 4 * 8 + lane % 4 * 2 + i % 2, below = i / 2 % 2 * 8;

        if (key > at + below || (window && key <= low + below))
            s[i] = -1e30f;
    }
}

/* Online softmax of a thread's two rows: the maximum score so far, and the
 * thread's part of the sum of weights. */
struct seen {
    float most[2], sum[2];
};

/* Turn scores into weights 2^(s unit - maximum).  shrink: the factor for
 * earlier sums, since the maximum may have grown. */
static __device__ __forceinline__ void soften(float (&s)[KEYS / 2], float unit,
                                              struct seen *g, float shrink[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = s[2 * r], total = 0;

#pragma unroll
        for (int j = 0; j < KEYS / 2; j += 4)
            most = fmaxf(most, fmaxf(s[j + 2 * r], s[j + 2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        most = fmaxf(g->most[r], most * unit);
        shrink[r] = exp2_fast(g->most[r] - most);
        g->most[r] = most;
#pragma unroll
        for (int j = 0; j < KEYS / 2; j += 4)
#pragma unroll
            for (int i = j + 2 * r; i < j + 2 * r + 2; i++) {
                s[i] = exp2_fast(fmaf(s[i], unit, -most));
                total += s[i];
            }
        g->sum[r] = fmaf(g->sum[r], shrink[r], total);
    }
}

/* The weights as operands of values(). */
static __device__ __forceinline__ void weights(const float (&s)[KEYS / 2],
                                               uint32_t (&p)[KEYS / 4])
{
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++)
        p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

/* Values from row n of a tile on become 0; all threads that multiply. */
template <int DV>
static __device__ __forceinline__ void clear_values(bf16 (*v)[KEYS][PANEL],
                                                    int n, int thread)
{
    const int chunks = PANEL / 8;

    for (int i = n * chunks + thread; i < KEYS * chunks; i += EATERS)
        for (int p = 0; p < DV / PANEL; p++)
            *(uint4 *)&v[p][i / chunks][i % chunks * 8] =
                make_uint4(0, 0, 0, 0);
    stores_made();
    meet(MEET, EATERS);
}

/* i: index in the block of the thread's upper query. */
template <int DV>
static __device__ __forceinline__ void
write_out(const struct attend_args &a, const struct job &j, int i, int lane,
          const struct seen *g, const float (&out)[DV / 2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int at = i + r * 8;
        bf16 *to = (bf16 *)a.out + (j.b.row + at) * a.out_row +
                   (int64_t)j.head * a.v_dim;
        float sum = g->sum[r];

        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        sum = 1 / sum;
#pragma unroll
        for (int d = 0; d < DV / 8; d++) {
            int col = d * 8 + lane % 4 * 2;

            if (at < j.b.n && col < a.v_dim)
                *(uint32_t *)(to + col) = pack_bf16(
                    out[4 * d + 2 * r] * sum, out[4 * d + 2 * r + 1] * sum);
        }
    }
}

/* A group's softmax of one tile of scores. */
static __device__ __forceinline__ void weigh(const struct attend_args &a,
                                             float (&s)[KEYS / 2], int k0,
                                             int top, int lane, struct seen *g,
                                             float shrink[2])
{
    /* top: position of the warp's first query */
    if (k0 + KEYS - 1 > top || (a.window && k0 <= top + 15 - a.window))
        mask(s, lane, k0, top + lane / 4, a.window);
    soften(s, a.scale * 1.44269504f, g, shrink);
}

/* ---- jobs ---- */

/* A warp has read a tile, or the queries. */
static __device__ __forceinline__ void give_back(uint64_t *barrier, int lane)
{
    if (lane == 0)
        barrier_arrive(shared_address(barrier));
}

/* One job of group `group` (0 or 1); *tile: tiles before it. */
template <int DQ, int DV>
static __device__ __forceinline__ void
attend_job(const struct attend_args &a, const struct job &j, struct shared *s,
           struct room<DQ, DV> *m, int group, int *tile)
{
    const int k_tile = (int)sizeof(m->k[0]) / 16;
    const int v_tile = (int)sizeof(m->v[0]) / 16;
    const struct reach r = reach_of(a, j.b);
    int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
    int first = group * SHARE + warp * 16;
    int top = j.b.first + first, n = *tile, left = r.tiles, k0 = r.begin;
    const uint64_t q =
        operand(shared_address(m->q[0]) + group * SHARE * PANEL_ROW, 16, 1024);
    const uint64_t k = operand(shared_address(m->k[0][0]), 16, 1024);
    const uint64_t v =
        operand(shared_address(m->v[0][0]), KEYS * PANEL_ROW, 1024);
    struct seen g = { { -1e20f, -1e20f }, { 0, 0 } };
    float score[KEYS / 2], out[DV / 2], shrink[2];
    uint32_t p[KEYS / 4];

#pragma unroll
    for (int i = 0; i < DV / 2; i++)
        out[i] = 0;
    barrier_wait(shared_address(&s->k[n % STAGES]), n / STAGES % 2);
    scores<DQ>(score, q, k + n % STAGES * k_tile);
    products_wait<0>();
    hold(score);
    give_back(&s->k_free[n % STAGES], lane);
    weigh(a, score, k0, top, lane, &g, shrink);
    weights(score, p);
    while (--left) {
        int now = n++ % STAGES, next = n % STAGES;

        k0 += KEYS;
        barrier_wait(shared_address(&s->k[next]), n / STAGES % 2);
        meet(TURN + group, EATERS);
        scores<DQ>(score, q, k + next * k_tile);
        barrier_wait(shared_address(&s->v[now]), (n - 1) / STAGES % 2);
        values<DV>(out, p, v + now * v_tile);
        announce(TURN + (group ^ 1), EATERS);
        products_wait<1>();
        hold(score);
        weigh(a, score, k0, top, lane, &g, shrink);
        /* the keys are free since the wait; that they go back only after the
         * softmax keeps the assembler from moving it behind the next wait */
        give_back(&s->k_free[next], lane | -(g.sum[0] + g.sum[1] < 0));
        products_wait<0>();
        hold(out);
        hold(p);
        give_back(&s->v_free[now], lane);
#pragma unroll
        for (int i = 0; i < DV / 2; i++)
            out[i] *= shrink[i / 2 % 2];
        weights(score, p);
    }
    give_back(&s->q_free, lane);
    barrier_wait(shared_address(&s->v[n % STAGES]), n / STAGES % 2);
    if (r.last + 1 - k0 < KEYS)
        clear_values<DV>(m->v[n % STAGES], r.last + 1 - k0,
                         (int)threadIdx.x - GROUP);
    values<DV>(out, p, v + n % STAGES * v_tile);
    products_wait<0>();
    hold(out);
    give_back(&s->v_free[n % STAGES], lane);
    write_out<DV>(a, j, first + lane / 4, lane, &g, out);
    *tile = n + 1;
}

template <int DQ, int DV>
static __device__ __forceinline__ void
attend_jobs(const struct attend_args &a, struct shared *s,
            struct room<DQ, DV> *m, int group)
{
    int tile = 0;

    if (group == 1)
        announce(TURN, EATERS); /* group 0 has the first turn */
    for (int n = 0;; n++) {
        struct job j;

        barrier_wait(shared_address(&s->q), n % 2);
        j = s->job;
        if (j.head < 0)
            break;
        attend_job<DQ, DV>(a, j, s, m, group, &tile);
    }
}

#endif
