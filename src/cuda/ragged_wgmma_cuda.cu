/* ragged_wgmma_cuda.cu - the Hessians of ragged_cuda.cu by Hopper's asynchronous
 * products.  Needs sm_90a.
 *
 * A block of threads stays on its multiprocessor and takes one job after the
 * other: a tile of 128 x 256 of the lower triangle of one input's H.  Warp group 0
 * only copies, by one thread: TOKENS tokens of the tile's rows and columns at a
 * time, four steps in flight, the next job's behind those of this one.  Groups 1
 * and 2 multiply 64 rows each.  Both operands lie as the tokens do, so they are
 * read turned (MN-major).  A tile on the diagonal has its rows among its columns:
 * they are copied once, and columns of which no row needs any are left out.
 *
 * Deterministic: a tile's tokens are added in order, RUN of them in registers, then
 * to what is in memory.  An input's bytes do not depend on the others of a call,
 * nor on which block takes which job; the counter of jobs is all that is atomic.
 *
 * Shared memory: 192 KiB of tokens, 32 of results on their way.  Floor: cols² / 2
 * multiply-adds per token, 4 bytes written per element.  A block reads 768 bytes
 * per token and tile, from the L2 cache in most cases. */
#include "cuda/hopper.cuh"
#include "cuda/mma.cuh"
#include "cuda/wgmma.cuh"

#include <stdlib.h>
#include <string.h>

/* A block's threads: a warp group that copies, two that multiply.  Their
 * registers must fit what a block begins with, 168 a thread. */
enum {
    GROUP = 128,
    GROUPS = 2, /* that multiply */
    EATERS = GROUPS * GROUP,
    THREADS = GROUP + EATERS,
    COPY_REGISTERS = 40,
    MULTIPLY_REGISTERS = 232
};

enum {
    TILE_I = 128, /* rows of a tile of H, 64 of each group */
    TILE_J = 256, /* its columns */
    TOKENS = 64,  /* of a step */
    STAGES = 4,   /* steps in shared memory */
    RUN = 16384,  /* tokens of a partial sum, a multiple of TOKENS */
    PANEL = 64,   /* columns: 128 bytes, the width of the swizzle */
    PANEL_BYTES = TOKENS * PANEL * 2,
    ACROSS = TILE_J / PANEL,         /* panels of the columns; behind them */
    PANELS = ACROSS + TILE_I / PANEL /* those of the rows */
};

/* In shared memory: steps, and a warp's results before they are written. */
struct room {
    __nv_bfloat16 step[STAGES][PANELS][TOKENS][PANEL];
    float patch[EATERS / 32][16][PANEL];
};

struct input {
    CUtensorMap map; /* of x[tokens, cols]; none without tokens */
    float *h;        /* packed lower triangle */
    uint64_t tokens;
};

struct job {
    const struct input *in; /* NULL: there are no more jobs */
    float *h;
    uint64_t tokens;
    uint32_t i0, j0; /* where the tile begins */
};

/* Barriers: a step is there, has been read; a job is there, has been read.  The job's
 * number is read and written by atomics, since racecheck does not know what the barriers
 * order. */
struct shared {
    uint64_t full[STAGES], empty[STAGES], job, job_free;
    uint32_t next;
};

/* Whether the tile's rows are among its columns, and whether the upper half of
 * its columns lies above the diagonal. */
static __device__ __forceinline__ bool is_diagonal(const struct job &j)
{
    return j.i0 < j.j0 + TILE_J;
}

static __device__ __forceinline__ bool is_narrow(const struct job &j)
{
    return j.i0 == j.j0;
}

/* ---- the group that copies ---- */

/* Tile number t of the triangle: rows 2 q and 2 q + 1 of tiles have the columns
 * 0..q of tiles. */
static __device__ __forceinline__ void find_tile(uint32_t t, struct job *j)
{
    uint32_t q = (uint32_t)((sqrtf(4 * (float)t + 1) - 1) / 2);

    q -= q * (q + 1) > t;
    q += (q + 1) * (q + 2) <= t;
    t -= q * (q + 1);
    j->i0 = (2 * q + (t > q)) * TILE_I;
    j->j0 = t % (q + 1) * TILE_J;
}

static __device__ __forceinline__ struct job
job_of(const struct input *list, uint32_t jobs, uint32_t tiles, uint32_t k)
{
    struct job j = {};

    if (k < jobs) {
        j.in = list + k / tiles;
        j.h = j.in->h;
        j.tokens = j.in->tokens;
        find_tile(k % tiles, &j);
    }
    return j;
}

/* The steps of a job; *step: steps before it. */
static __device__ __forceinline__ void copy_steps(const struct job &j,
                                                  struct shared *s,
                                                  struct room *m,
                                                  uint32_t *step)
{
    int across = is_narrow(j) ? ACROSS / 2 : ACROSS;
    int panels = is_diagonal(j) ? across : PANELS;
    int rows = (int)j.tokens;

#pragma unroll 1
    for (int row = 0; row < rows; row += TOKENS, ++*step) {
        uint32_t stage = *step % STAGES;
        uint32_t full = shared_address(&s->full[stage]);

        barrier_wait(shared_address(&s->empty[stage]),
                     (int)(*step / STAGES % 2 ^ 1));
        barrier_expect(full, panels * PANEL_BYTES);
#pragma unroll 1
        for (int p = 0; p < panels; p++)
            copy_box(shared_address(m->step[stage][p]), &j.in->map, full,
                     (int)(p < ACROSS ? j.j0 + p * PANEL :
                                        j.i0 + (p - ACROSS) * PANEL),
                     0, row);
    }
}

/* One thread.  *taken counts the jobs behind the first of each block. */
[[maybe_unused]] static __device__ __forceinline__ void
copy_jobs(const struct input *list, uint32_t jobs, uint32_t tiles, int *taken,
          struct shared *s, struct room *m)
{
    uint32_t step = 0, k = blockIdx.x, next;

    for (uint32_t n = 0;; n++, k = next) {
        struct job j = job_of(list, jobs, tiles, k);

        barrier_wait(shared_address(&s->job_free), (int)(n % 2 ^ 1));
        atomicExch(&s->next, k);
        barrier_arrive(shared_address(&s->job));
        if (!j.in)
            break;
        next = gridDim.x + (uint32_t)atomicAdd(taken, 1);
        map_copied(&j.in->map);
        copy_steps(j, s, m, &step);
    }
}

/* ---- the groups that multiply ---- */

/* A warp has read what the barrier guards. */
static __device__ __forceinline__ void give_back(uint64_t *barrier, int lane)
{
    if (lane == 0)
        barrier_arrive(shared_address(barrier));
}

/* Start sum += the products of a step, N columns; a, b: its operands. */
template <int N>
static __device__ __forceinline__ void multiply_step(float (&sum)[128],
                                                     uint64_t a, uint64_t b)
{
    const int next = 16 * PANEL * 2 / 16; /* 16 tokens */

    hold(sum);
    products_begin();
#pragma unroll
    for (int k = 0; k < TOKENS / 16; k++)
        group_multiply_turned<N>(sum, a + k * next, b + k * next);
    products_commit();
    hold(sum);
}

/* sum += the products of so many steps.  a, b: operands of stage 0; *step: steps
 * before these.  A step's products run while the step before is given back. */
template <int N>
static __device__ __forceinline__ void
multiply_run(float (&sum)[128], uint64_t a, uint64_t b, struct shared *s,
             uint32_t steps, uint32_t *step, int lane)
{
    const uint32_t stride = PANELS * PANEL_BYTES / 16;

#pragma unroll 1
    for (uint32_t n = 0; n < steps; n++, ++*step) {
        uint32_t stage = *step % STAGES;

        barrier_wait(shared_address(&s->full[stage]),
                     (int)(*step / STAGES % 2));
        multiply_step<N>(sum, a + stage * stride, b + stage * stride);
        products_wait<1>();
        if (n)
            give_back(&s->empty[(*step - 1) % STAGES], lane);
    }
    products_wait<0>();
    hold(sum);
    if (steps)
        give_back(&s->empty[(*step - 1) % STAGES], lane);
}

/* What a warp writes: 16 rows from i, columns from j; its factor in two parts. */
struct part {
    float *h;
    uint32_t cols, i, j;
    bool first;
    float high, low;
};

/* Write 16 x 64 results, by rows: h = (h + patch) * factor, h read as 0 if `first`.
 * Of patch, 8-column pieces of row r lie at piece ^ r % 4. */
static __device__ __forceinline__ void put_rows(const float (*patch)[PANEL],
                                                const struct part &w, int lane)
{
    float *to = w.h + (uint64_t)w.i * (w.i + 1) / 2 + w.j + lane;
    int reach = (int)(w.i - w.j) - lane, rows = (int)(w.cols - w.i);

#pragma unroll 1
    for (int r0 = 0; r0 < 16; r0 += 8) {
        float x[16] = {}, *row[8];
        auto is_there = [&](int k) {
            return r0 + k / 2 < rows && k % 2 * 32 <= reach + r0 + k / 2;
        };

#pragma unroll
        for (int k = 0; k < 8; k++) {
            row[k] = to;
            to += w.i + 1 + r0 + k;
        }
        if (!w.first)
#pragma unroll
            for (int k = 0; k < 16; k++)
                if (is_there(k))
                    x[k] = row[k / 2][k % 2 * 32];
#pragma unroll
        for (int k = 0; k < 16; k++) {
            int at = (k % 2 * 32 + lane) ^ k / 2 % 4 * 8;

            x[k] += patch[r0 + k / 2][at];
            x[k] = __fmaf_rn(x[k], w.high, __fmul_rn(x[k], w.low));
        }
#pragma unroll
        for (int k = 0; k < 16; k++)
            if (is_there(k))
                row[k / 2][k % 2 * 32] = x[k];
    }
}

/* Write the warp's part of a tile, 64 columns at a time. */
static __device__ __forceinline__ void write_sums(const float (&sum)[128],
                                                  float (*patch)[PANEL],
                                                  struct part w, int lane)
{
    int row = lane / 4;

#pragma unroll
    for (int p = 0; p < ACROSS; p++, w.j += PANEL) {
        if (w.i >= w.cols || w.j > w.i + 15)
            break;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float *s = sum + 32 * p + 4 * n;
            int at = (n ^ row % 4) * 8 + lane % 4 * 2;

            *(float2 *)&patch[row][at] = make_float2(s[0], s[1]);
            *(float2 *)&patch[row + 8][at] = make_float2(s[2], s[3]);
        }
        __syncwarp();
        put_rows(patch, w, lane);
        __syncwarp();
    }
}

/* One job of group `group` (0 or 1); *step: steps before it. */
static __device__ __forceinline__ void
multiply_job(const struct job &j, uint32_t cols, struct shared *s,
             struct room *m, int group, uint32_t *step)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
    uint32_t rows =
        group + (is_diagonal(j) ? (j.i0 - j.j0) / PANEL : (uint32_t)ACROSS);
    uint64_t b = operand(shared_address(m->step[0][0]), PANEL_BYTES, 1024);
    uint64_t a = b + rows * (PANEL_BYTES / 16);
    struct part w = { j.h, cols, j.i0 + group * PANEL + warp * 16, j.j0 };

#pragma unroll 1
    for (uint64_t t = 0; t == 0 || t < j.tokens; t += RUN) {
        uint64_t left = j.tokens - t;
        bool last = left <= RUN;
        uint32_t n = last ? (uint32_t)left : RUN;
        double factor = !last ? 1 : left ? 2 / (double)j.tokens : 0;
        float sum[128];

        n = (n + TOKENS - 1) / TOKENS;
#pragma unroll
        for (int i = 0; i < 128; i++)
            sum[i] = 0;
        if (is_narrow(j))
            multiply_run<128>(sum, a, b, s, n, step, lane);
        else
            multiply_run<256>(sum, a, b, s, n, step, lane);
        w.first = t == 0;
        w.high = (float)factor;
        w.low = (float)(factor - (double)w.high);
        write_sums(sum, m->patch[group * 4 + warp], w, lane);
    }
}

[[maybe_unused]] static __device__ __forceinline__ void
multiply_jobs(const struct input *list, uint32_t jobs, uint32_t tiles,
              uint32_t cols, struct shared *s, struct room *m, int group)
{
    int lane = threadIdx.x % 32;
    uint32_t step = 0;

    for (uint32_t n = 0;; n++) {
        uint32_t k = 0;
        struct job j;

        barrier_wait(shared_address(&s->job), (int)(n % 2));
        if (lane == 0)
            k = atomicAdd(&s->next, 0);
        j = job_of(list, jobs, tiles, __shfl_sync(~0u, k, 0));
        give_back(&s->job_free, lane);
        if (!j.in)
            break;
        multiply_job(j, cols, s, m, group, &step);
    }
}

/* Grid: as many blocks as run at once.  list[jobs / tiles]: inputs. */
static __global__ void __launch_bounds__(THREADS, 1)
    hessian_wgmma_kernel(const struct input *list, uint32_t jobs,
                         uint32_t tiles, uint32_t cols, int *taken)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ char memory[];
    __shared__ struct shared s;
    struct room *m =
        (struct room *)(((uintptr_t)memory + 1023) & ~(uintptr_t)1023);
    int group = __shfl_sync(~0u, (int)threadIdx.x / GROUP, 0);

    if (threadIdx.x == 0) {
        barrier_init(shared_address(&s.job), 1);
        barrier_init(shared_address(&s.job_free), EATERS / 32);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared_address(&s.full[i]), 1);
            barrier_init(shared_address(&s.empty[i]), EATERS / 32);
        }
        barriers_made();
    }
    __syncthreads();
    if (group == 0) {
        registers_fewer<COPY_REGISTERS>();
        if (threadIdx.x == 0)
            copy_jobs(list, jobs, tiles, taken, &s, m);
    } else {
        registers_more<MULTIPLY_REGISTERS>();
        multiply_jobs(list, jobs, tiles, cols, &s, m, group - 1);
    }
#endif
}

/* ---- the host's side ---- */

bool ragged_wgmma_runs(struct cuda_context *c)
{
    static int known; /* a process has one context; 1: no, 2: yes */

    if (!known)
        known = 1 + (hopper_has(c, (const void *)hessian_wgmma_kernel) &&
                     (int)sizeof(struct room) + 2048 <= c->shared_memory);
    return known == 2;
}

/* Tiles of a triangle: see find_tile(). */
static uint64_t count_tiles(uint64_t cols)
{
    uint64_t rows = (cols + TILE_I - 1) / TILE_I, pairs = rows / 2;

    return (pairs + rows % 2) * (pairs + 1);
}

static int make_input(struct input *in, const struct cuda_tokens *t,
                      uint64_t cols, struct err *e)
{
    struct tensor_shape s = {};

    in->h = t->h;
    in->tokens = t->tokens;
    s.p = t->x;
    s.dims[0] = cols;
    s.dims[1] = 1;
    s.dims[2] = t->tokens;
    s.strides[0] = s.strides[1] = cols * 2;
    s.box = TOKENS;
    return t->tokens ? tensor_map(&in->map, &s, e) : 0;
}

/* On the device: the inputs, and behind them the counter of jobs, 0. */
static int put_inputs(struct cuda_context *c, uint64_t cols,
                      const struct cuda_tokens *t, int n, struct err *e)
{
    size_t bytes = ((size_t)n + 1) * sizeof(struct input);
    int rc = buffer_need(c, &c->steps, bytes, e);
    struct input *list;

    if (rc < 0)
        return rc;
    list = (struct input *)mem_pages(bytes, "hessian", e); /* maps: aligned */
    if (!list)
        return e->code;
    memset(list, 0, bytes);
    for (int i = 0; i < n && rc >= 0; i++)
        rc = make_input(&list[i], &t[i], cols, e);
    if (rc >= 0)
        rc = upload(c, c->steps.data, list, bytes, e);
    free(list);
    return rc;
}

int ragged_wgmma(struct cuda_context *c, uint64_t cols,
                 const struct cuda_tokens *t, int n, struct err *e)
{
    const int bytes = (int)sizeof(struct room) + 1024;
    uint64_t tiles = count_tiles(cols), jobs = tiles * (uint64_t)n;
    unsigned blocks =
        (unsigned)(jobs < (uint64_t)c->processors ? jobs :
                                                    (uint64_t)c->processors);
    struct input *list;
    int rc;

    for (int i = 0; i < n; i++)
        if (t[i].tokens > INT32_MAX - TOKENS)
            return err_set(e, E_CONFIG, "hessians: too many tokens");
    if (jobs > INT32_MAX / 2)
        return err_set(e, E_CONFIG, "hessians: too many inputs");
    if ((rc = put_inputs(c, cols, t, n, e)) < 0)
        return rc;
    list = (struct input *)c->steps.data;
    CUDA_TRY(cudaFuncSetAttribute(hessian_wgmma_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  bytes));
    hessian_wgmma_kernel<<<blocks, THREADS, (size_t)bytes, c->stream>>>(
        list, (uint32_t)jobs, (uint32_t)tiles, (uint32_t)cols,
        (int *)(list + n));
    LAUNCHED();
    return 0;
}
