/* grouped_cuda.cu - see grouped.cuh.
 *
 * A block computes a tile of one group's C, 64 x 64, on tensor cores (mma.sync, sm_80),
 * while the next steps of 32 terms are copied to shared memory.  Tiles of operands whose
 * rows are terms are read by transposing ldmatrix.  Floor: 2 m n k operations; blocks
 * read 2 (m k n / 64 + n k m / 64) bytes of each, most of them from the L2 cache. */
#include "cuda/grouped.cuh"
#include "cuda/mma.cuh"

#include <stdlib.h>

enum {
    TILE = 64,               /* rows and columns of a block */
    DEPTH = 32,              /* terms of a step */
    STAGES = 4,              /* steps in the pipeline, one of them in use */
    PART = TILE * DEPTH * 2, /* bytes of an operand's tile */
    THREADS = 128            /* warps of 32 x 32 */
};

struct job {
    struct grouped of;
    int64_t tile; /* number of its first */
};

/* Offset of a piece of 16 bytes in a tile whose rows have 32 terms, or, ACROSS, 64 of
 * the same term: eight rows of ldmatrix lie in different banks. */
template <bool ACROSS>
static __device__ __forceinline__ uint32_t place(uint32_t row, uint32_t piece)
{
    return ACROSS ? row * 128 + (piece ^ row % 8) * 16 :
                    row * 64 + (piece ^ row / 2 % 4) * 16;
}

/* Start the copies of terms t..t+31 of rows (ACROSS: columns) first..first+63 of x[n, k]
 * (ACROSS: [k, n]), zeros beyond. */
template <bool ACROSS>
static __device__ __forceinline__ void fetch(uint32_t to, const bf16 *x,
                                             int64_t n, int64_t k,
                                             int64_t first, int64_t t)
{
    const uint32_t pieces = ACROSS ? 8 : 4;
    uint32_t piece = threadIdx.x % pieces;

#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t row = threadIdx.x / pieces + i * THREADS / pieces;
        int64_t r = (ACROSS ? t : first) + row;
        int64_t col = (ACROSS ? first : t) + 8 * piece;
        bool there = r < (ACROSS ? k : n) && col < (ACROSS ? n : k);

        copy_16(to + place<ACROSS>(row, piece),
                there ? x + r * (ACROSS ? n : k) + col : x, there);
    }
}

/* The warp's sum[32, 32] += the products of a step; A begins at `at`, B behind. */
template <bool TA, bool TB>
static __device__ __forceinline__ void
multiply_step(float sum[2][4][4], uint32_t at, uint32_t wi, uint32_t wj)
{
    uint32_t lane = threadIdx.x % 32, row = lane % 8, half = lane / 8 % 2;
    uint32_t other = lane / 16;

#pragma unroll
    for (uint32_t k = 0; k < DEPTH; k += 16) {
        uint32_t a[2][4], b[2][4];

#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t m = wi + 16 * i, n = wj + 16 * i, to = at + PART;

            if (TA)
                load_transposed(
                    a[i], at + place<TA>(k + 8 * other + row, m / 8 + half));
            else
                load_matrices(
                    a[i], at + place<TA>(m + 8 * half + row, k / 8 + other));
            if (TB)
                load_transposed(
                    b[i], to + place<TB>(k + 8 * half + row, n / 8 + other));
            else
                load_matrices(
                    b[i], to + place<TB>(n + 8 * other + row, k / 8 + half));
        }
#pragma unroll
        for (uint32_t m = 0; m < 2; m++)
#pragma unroll
            for (uint32_t n = 0; n < 4; n++)
                multiply(sum[m][n], a[m], b[n / 2] + n % 2 * 2);
    }
}

template <enum grouped_ending ENDING>
static __device__ __forceinline__ void put(void *c, int64_t at, float x,
                                           float y)
{
    float2 *to = (float2 *)((float *)c + at);

    if (ENDING == GROUPED_BF16)
        *(uint32_t *)((bf16 *)c + at) = pack_bf16(x, y);
    else if (ENDING == GROUPED_ADD)
        *to = make_float2(__fadd_rn(to->x, x), __fadd_rn(to->y, y));
    else
        *to = make_float2(x, y);
}

/* The group of a tile. */
static __device__ __forceinline__ const struct job &
find_job(const struct job *list, int groups, int64_t tile)
{
    int from = 0;

    for (int to = groups; to - from > 1;) {
        int middle = (from + to) / 2;

        if (list[middle].tile <= tile)
            from = middle;
        else
            to = middle;
    }
    return list[from];
}

/* TA: A is [k, m]; TB: B is [k, n]. */
template <bool TA, bool TB, enum grouped_ending ENDING>
static __global__ void __launch_bounds__(THREADS)
    grouped_kernel(const struct job *list, int groups)
{
    __shared__ float4 memory[STAGES * 2 * PART / sizeof(float4)];
    const struct job j = find_job(list, groups, blockIdx.x);
    const struct grouped &g = j.of;
    int64_t across = (g.n + TILE - 1) / TILE, tile = blockIdx.x - j.tile;
    int64_t i0 = tile / across * TILE, j0 = tile % across * TILE;
    uint32_t room = shared_address(memory), warp = threadIdx.x / 32;
    uint32_t wi = warp / 2 * 32, wj = warp % 2 * 32, lane = threadIdx.x % 32;
    int64_t steps = (g.k + DEPTH - 1) / DEPTH;
    float sum[2][4][4] = {};
    auto fetch_step = [&](int64_t s) {
        uint32_t to = room + (uint32_t)(s % STAGES) * 2 * PART;

        if (s < steps) {
            fetch<TA>(to, g.a, g.m, g.k, i0, s * DEPTH);
            fetch<TB>(to + PART, g.b, g.n, g.k, j0, s * DEPTH);
        }
        copy_commit();
    };

    for (int s = 0; s < STAGES - 1; s++)
        fetch_step(s);
    for (int64_t s = 0; s < steps; s++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        fetch_step(s + STAGES - 1);
        multiply_step<TA, TB>(sum, room + (uint32_t)(s % STAGES) * 2 * PART, wi,
                              wj);
    }
    for (int m = 0; m < 2; m++)
        for (int n = 0; n < 4; n++)
            for (int h = 0; h < 2; h++) {
                int64_t row = i0 + wi + 16 * m + 8 * h + lane / 4;
                int64_t col = j0 + wj + 8 * n + 2 * (lane % 4);

                if (row < g.m && col < g.n)
                    put<ENDING>(g.c, row * g.n + col, sum[m][n][2 * h],
                                sum[m][n][2 * h + 1]);
            }
}

template <bool TA, bool TB>
static int launch(struct cuda_context *c, enum grouped_ending ending,
                  const struct job *list, int groups, int64_t tiles,
                  struct err *e)
{
    unsigned blocks = (unsigned)tiles;

    switch (ending) {
    case GROUPED_BF16:
        grouped_kernel<TA, TB, GROUPED_BF16>
            <<<blocks, THREADS, 0, c->stream>>>(list, groups);
        break;
    case GROUPED_F32:
        grouped_kernel<TA, TB, GROUPED_F32>
            <<<blocks, THREADS, 0, c->stream>>>(list, groups);
        break;
    case GROUPED_ADD:
        grouped_kernel<TA, TB, GROUPED_ADD>
            <<<blocks, THREADS, 0, c->stream>>>(list, groups);
        break;
    }
    LAUNCHED();
    return 0;
}

/* Those that have something to do, and the tiles of all. */
static int64_t list_jobs(const struct grouped *list, int64_t groups,
                         struct job *to, int64_t *tiles)
{
    int64_t n = 0;

    *tiles = 0;
    for (int64_t i = 0; i < groups; i++) {
        if (!list[i].m || !list[i].n || !list[i].k)
            continue;
        to[n++] = { list[i], *tiles };
        *tiles +=
            (list[i].m + TILE - 1) / TILE * ((list[i].n + TILE - 1) / TILE);
    }
    return n;
}

int grouped_multiply(struct cuda_context *c, enum grouped_form form,
                     enum grouped_ending ending, const struct grouped *list,
                     int64_t groups, struct err *e)
{
    struct job *jobs = (struct job *)mem_alloc(
        (size_t)(groups + 1) * sizeof(*jobs), "experts", e);
    int64_t tiles, n = jobs ? list_jobs(list, groups, jobs, &tiles) : 0;
    struct device_buffer *room = &c->steps;
    int rc = jobs ? 0 : e->code;

    if (n && tiles > INT32_MAX)
        rc = err_set(e, E_CONFIG, "cuda: too many rows of experts");
    if (rc >= 0 && n)
        rc = buffer_need(c, room, (size_t)n * sizeof(*jobs), e);
    if (rc >= 0 && n)
        rc = upload(c, room->data, jobs, (size_t)n * sizeof(*jobs), e);
    free(jobs);
    if (rc < 0 || !n)
        return rc;
    return (form == GROUPED_FORWARD ?
                launch<false, false> :
            form == GROUPED_BACK ?
                launch<false, true> :
                launch<true, true>)(c, ending, (const struct job *)room->data,
                                    (int)n, tiles, e);
}

/* ---- sums of tokens ---- */

/* One block per token. */
template <class T>
static __global__ void __launch_bounds__(ROW)
    add_kernel(struct grouped_rows r, const T *from, float *sum)
{
    int64_t token = blockIdx.x, at = r.first - 1;
    const int64_t *row = r.row + token * r.top_k;

    sum += token * r.n;
    while (true) {
        int64_t next = r.end, choice = 0;
        float w;

        for (int64_t k = 0; k < r.top_k; k++)
            if (row[k] > at && row[k] < next) {
                next = row[k];
                choice = token * r.top_k + k;
            }
        if (next == r.end)
            return;
        at = next;
        w = r.weight ? r.weight[r.weight_of_row ? at : choice] : 1;
        for (int64_t i = threadIdx.x; i < r.n; i += ROW)
            sum[i] = __fadd_rn(
                sum[i], __fmul_rn(w, load(from + (at - r.first) * r.n + i)));
    }
}

template <class T>
static int add(struct cuda_context *c, const struct grouped_rows &r,
               const void *from, float *sum, struct err *e)
{
    add_kernel<T>
        <<<(unsigned)r.tokens, ROW, 0, c->stream>>>(r, (const T *)from, sum);
    LAUNCHED();
    return 0;
}

int grouped_add(struct cuda_context *c, const struct grouped_rows &r,
                enum dtype t, const void *from, float *sum, struct err *e)
{
    return r.tokens ? BY_DTYPE(t, add, c, r, from, sum, e) : 0;
}
