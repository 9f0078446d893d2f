/* forward_attend_mma_cuda.cu - causal softmax attention on tensor cores, by
 * online softmax over tiles of keys (FlashAttention-2: arXiv 2307.08691).
 *
 * A block of threads has QUERIES queries of a head, a warp 16 of them.  Tiles
 * of KEYS keys and values are double-buffered in shared memory.  Queries and
 * outputs stay in registers, and softmax weights go from the first product to
 * the second without leaving registers.  Scores are scaled for exp2; the
 * softmax denominator sums the weights before they are rounded to bf16, as on
 * the CPU.  The last dims of a key may come from rows that all heads share
 * (tail), so that multi-head latent attention's keys (DeepSeek-V2: arXiv
 * 2405.04434) are never assembled in memory.
 *
 * Operations: 2 (dim + v_dim) for each visible pair of query and key. */
#include "cuda/forward_internal.cuh"
#include "cuda/mma.cuh"

enum {
    KEYS = 64,
    WARPS = ATTEND_QUERIES / 16,
    THREADS = 32 * WARPS,
    SKEW = 8 /* padding elements per row: 8 rows lie in different banks */
};

/* The shared memory. */
template <int DQ, int DV> struct room {
    bf16 q[ATTEND_QUERIES][DQ + SKEW];
    bf16 k[2][KEYS][DQ + SKEW];
    bf16 v[2][KEYS][DV + SKEW];
};

/* Start the copies of n rows of `dim` dims, zero-filled to ROWS x D; dims from
 * `own` on come from the tail. */
template <int ROWS, int D>
static __device__ __forceinline__ void
copy_rows(bf16 (*to)[D + SKEW], const bf16 *from, int64_t row, int own,
          const bf16 *tail, int64_t tail_row, int dim, int n)
{
    const int chunks = D / 8;

    for (int i = threadIdx.x; i < ROWS * chunks; i += THREADS) {
        int r = i / chunks, d = i % chunks * 8;
        bool there = r < n && d < dim;
        const bf16 *at =
            d < own ? from + r * row + d : tail + r * tail_row + (d - own);

        copy_16(shared_address(&to[r][d]), there ? at : from, there);
    }
}

/* s = the scores of 16 queries with KEYS keys. */
template <int DQ>
static __device__ __forceinline__ void scores(const uint32_t (*q)[4],
                                              const bf16 (*k)[DQ + SKEW],
                                              int lane, float (*s)[4])
{
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
        s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
    for (int d = 0; d < DQ / 16; d++)
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            uint32_t b[4];
            int key = j * 16 + lane / 16 * 8 + lane % 8;

            load_matrices(b,
                          shared_address(&k[key][d * 16 + lane / 8 % 2 * 8]));
            multiply(s[2 * j], q[d], b);
            multiply(s[2 * j + 1], q[d], b + 2);
        }
}

/* Causal and window mask: scores of keys that a query does not see become
 * -1e30.  k0: position of the tile's first key; at: position of the query in
 * row lane / 4 (the lane's other row is 8 below). */
static __device__ __forceinline__ void mask(float (*s)[4], int lane, int k0,
                                            int at, int64_t window)
{
    const float hidden = -1e30f;

#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int key = k0 + j * 8 + lane % 4 * 2 + i % 2;
            int query = at + i / 2 * 8;

            if (key > query || (window && key <= query - window))
                s[j][i] = hidden;
        }
}

/* Online softmax of a lane's two rows: the maximum score so far, and the lane's
 * part of the sum of weights. */
struct seen {
    float most[2], sum[2];
};

/* Turn scores into weights 2^(s unit - maximum).  shrink: the factor for
 * earlier sums, since the maximum may have grown. */
static __device__ __forceinline__ void soften(float (*s)[4], float unit,
                                              struct seen *g, float shrink[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = s[0][2 * r], total = 0;

#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            most = fmaxf(most, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        most = fmaxf(g->most[r], most * unit);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                s[j][i] = exp2_fast(fmaf(s[j][i], unit, -most));
                total += s[j][i];
            }
        shrink[r] = exp2_fast(g->most[r] - most);
        g->sum[r] = fmaf(g->sum[r], shrink[r], total);
        g->most[r] = most;
    }
}

/* out[16, DV] = out * shrink + p v. */
template <int DV>
static __device__ __forceinline__ void
values(const float (*p)[4], const bf16 (*v)[DV + SKEW], int lane,
       const float shrink[2], float (*out)[4])
{
#pragma unroll
    for (int d = 0; d < DV / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[d][i] *= shrink[i / 2];
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
        uint32_t a[4] = { pack_bf16(p[2 * j][0], p[2 * j][1]),
                          pack_bf16(p[2 * j][2], p[2 * j][3]),
                          pack_bf16(p[2 * j + 1][0], p[2 * j + 1][1]),
                          pack_bf16(p[2 * j + 1][2], p[2 * j + 1][3]) };
        int key = j * 16 + lane / 8 % 2 * 8 + lane % 8;

#pragma unroll
        for (int d = 0; d < DV / 16; d++) {
            uint32_t b[4];

            load_transposed(b, shared_address(&v[key][d * 16 + lane / 16 * 8]));
            multiply(out[2 * d], a, b);
            multiply(out[2 * d + 1], a, b + 2);
        }
    }
}

template <int DV>
static __device__ __forceinline__ void
write_out(const struct attend_args &a, const struct attend_block &b, int head,
          int warp, int lane, struct seen *g, const float (*out)[4])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = warp * 16 + lane / 4 + r * 8;
        bf16 *to =
            (bf16 *)a.out + (b.row + i) * a.out_row + (int64_t)head * a.v_dim;
        float sum = g->sum[r];

        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        sum = 1 / sum;
#pragma unroll
        for (int d = 0; d < DV / 8; d++) {
            int col = d * 8 + lane % 4 * 2;

            if (i < b.n && col < a.v_dim)
                *(uint32_t *)(to + col) =
                    pack_bf16(out[d][2 * r] * sum, out[d][2 * r + 1] * sum);
        }
    }
}

/* Grid (blocks of queries, heads); the last blocks first: they see the most
 * keys. */
template <int DQ, int DV>
static __global__ void __launch_bounds__(THREADS)
    attend_kernel(struct attend_args a)
{
    extern __shared__ char memory[];
    struct room<DQ, DV> *m = (struct room<DQ, DV> *)memory;
    const struct attend_block b = a.block[a.blocks - 1 - blockIdx.x];
    int head = blockIdx.y, kv = head / a.group, lane = threadIdx.x % 32;
    int warp = threadIdx.x / 32, last = b.first + b.n - 1, tile = 0;
    int at = b.first + warp * 16 + lane / 4; /* position of the lane's row 0 */
    int begin = a.window && b.first >= a.window ?
                    (b.first - (int)a.window + 1) / KEYS * KEYS :
                    0;
    const bf16 *k = (const bf16 *)a.k + b.keys * a.k_row + kv * a.k_head;
    const bf16 *v = (const bf16 *)a.v + b.keys * a.v_row + kv * a.v_head;
    const bf16 *tail = a.tail ? (const bf16 *)a.tail + b.keys * a.tail_row : k;
    struct seen g = { { -1e20f, -1e20f }, { 0, 0 } };
    float s[KEYS / 8][4], out[DV / 8][4], shrink[2];
    float unit = a.scale * 1.44269504f;
    uint32_t q[DQ / 16][4];

    copy_rows<ATTEND_QUERIES, DQ>(
        m->q, (const bf16 *)a.q + b.row * a.q_row + head * a.q_head, a.q_row,
        a.dim, NULL, 0, a.dim, b.n);
    copy_rows<KEYS, DQ>(m->k[0], k + begin * a.k_row, a.k_row, a.key_dim,
                        tail + begin * a.tail_row, a.tail_row, a.dim,
                        last + 1 - begin);
    copy_commit();
    copy_rows<KEYS, DV>(m->v[0], v + begin * a.v_row, a.v_row, a.v_dim, NULL, 0,
                        a.v_dim, last + 1 - begin);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
#pragma unroll
    for (int d = 0; d < DQ / 16; d++)
        load_matrices(
            q[d], shared_address(
                      &m->q[warp * 16 + lane % 16][d * 16 + lane / 16 * 8]));
#pragma unroll
    for (int d = 0; d < DV / 8; d++)
        out[d][0] = out[d][1] = out[d][2] = out[d][3] = 0;
    for (int k0 = begin; k0 <= last; k0 += KEYS, tile ^= 1) {
        int next = k0 + KEYS;

        /* K of this tile has arrived; the other buffer is free */
        if (next <= last)
            copy_rows<KEYS, DQ>(m->k[tile ^ 1], k + next * a.k_row, a.k_row,
                                a.key_dim, tail + next * a.tail_row, a.tail_row,
                                a.dim, last + 1 - next);
        copy_commit();
        scores<DQ>(q, m->k[tile], lane, s);
        if (next - 1 > b.first + warp * 16 ||
            (a.window && k0 <= b.first + warp * 16 + 15 - a.window))
            mask(s, lane, k0, at, a.window);
        soften(s, unit, &g, shrink);
        copy_wait<1>();
        __syncthreads(); /* V of this tile has arrived */
        if (next <= last)
            copy_rows<KEYS, DV>(m->v[tile ^ 1], v + next * a.v_row, a.v_row,
                                a.v_dim, NULL, 0, a.v_dim, last + 1 - next);
        copy_commit();
        values<DV>(s, m->v[tile], lane, shrink, out);
        copy_wait<1>();
        __syncthreads(); /* K of the next tile has arrived, this one is free */
    }
    write_out<DV>(a, b, head, warp, lane, &g, out);
}

template <int DQ, int DV>
static int run(struct cuda_context *c, const struct attend_args *a,
               struct err *e)
{
    int bytes = (int)sizeof(struct room<DQ, DV>);

    CUDA_TRY(cudaFuncSetAttribute(attend_kernel<DQ, DV>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  bytes));
    attend_kernel<DQ, DV><<<dim3((unsigned)a->blocks, (unsigned)a->heads),
                            THREADS, (size_t)bytes, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

/* ---- sizes that have a kernel ---- */

static const struct size {
    int dim, v_dim, bytes;
    int (*run)(struct cuda_context *c, const struct attend_args *a,
               struct err *e);
} sizes[] = {
    { 64, 64, (int)sizeof(struct room<64, 64>), run<64, 64> },
    { 128, 128, (int)sizeof(struct room<128, 128>), run<128, 128> },
    { 192, 128, (int)sizeof(struct room<192, 128>), run<192, 128> },
    { 256, 256, (int)sizeof(struct room<256, 256>), run<256, 256> },
};

static const struct size *size_for(const struct cuda_context *c, int64_t dim,
                                   int64_t v_dim)
{
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        if (dim <= sizes[i].dim && v_dim <= sizes[i].v_dim)
            return sizes[i].bytes <= c->shared_memory ? &sizes[i] : NULL;
    return NULL;
}

/* Whether heads are aligned to 16 bytes and consist of whole packs. */
static bool heads_fit(const struct forward_heads *h, int64_t dim)
{
    return !h->p || (((uintptr_t)h->p & 15) == 0 && h->row % 8 == 0 &&
                     h->head % 8 == 0 && dim % 8 == 0);
}

bool attend_mma_takes(const struct cuda_context *c,
                      const struct forward_attend *a)
{
    int64_t own = a->head_dim - (a->tail.p ? a->tail_dim : 0);

    return a->dtype == DT_BF16 && size_for(c, a->head_dim, a->v_dim) &&
           heads_fit(&a->q, a->head_dim) && heads_fit(&a->k, own) &&
           heads_fit(&a->v, a->v_dim) &&
           heads_fit(&a->tail, a->head_dim - own) && a->n_heads < 65536;
}

int attend_mma(struct cuda_context *c, const struct attend_args *a,
               struct err *e)
{
    return size_for(c, a->dim, a->v_dim)->run(c, a, e);
}
