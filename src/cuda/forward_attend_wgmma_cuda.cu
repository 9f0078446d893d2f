/* forward_attend_wgmma_cuda.cu - attention as in forward_attend_mma_cuda.cu by
 * Hopper's asynchronous products (FlashAttention-3: arXiv 2407.08608), for heads
 * of at most 192 dims with values of at most 128.  Needs sm_90a.
 *
 * A block of threads stays on its multiprocessor and takes one job after the
 * other: ATTEND_QUERIES queries of a head.  Warp group 0 only copies, by one
 * thread: queries, then tiles of KEYS keys and values, two of each in flight.
 * Groups 1 and 2 have 64 queries each.  A tile's softmax runs while the weights
 * of the tile before multiply its values, and while the other group, which takes
 * turns, multiplies.  Sums and roundings are those of the other kernel: scores in
 * units of log2, weights summed before they are rounded to bf16.  The last dims
 * of a key may come from rows that all heads share (tail).
 *
 * A query's bytes depend on its own sequence only: keys begin at multiples of
 * KEYS of it, hidden scores have the weight 0, and values behind the last key are
 * replaced by 0.  Which block takes which job changes nothing.
 *
 * Shared memory: 80, 160 and 208 KiB at 64, 128 and 192 dims.  Operations: 2 (dim +
 * v_dim) for each visible pair of query and key; 526 TFLOP/s at 192 / 128, rotations
 * included, of 679 that the largest product reaches (H200, bench/cuda_forward.c). */
#include "cuda/attend_wgmma.cuh"
#include "cuda/hopper.cuh"

struct attend_maps {
    CUtensorMap q, k, v, tail;
};

/* ---- the group that copies ---- */

/* Job i: the last blocks of a head first, since they see the most keys. */
__device__ __forceinline__ struct job job_of(const struct attend_args &a, int i)
{
    struct job j;

    j.head = -1;
    if (i < a.blocks * a.heads) {
        j.head = i / a.blocks;
        j.b = a.block[a.blocks - 1 - i % a.blocks];
    }
    return j;
}

template <int DQ, int DV>
static __device__ __forceinline__ void
copy_tiles(const struct attend_maps &maps, const struct attend_args &a,
           const struct job &j, struct shared *s, struct room<DQ, DV> *m,
           int *tile)
{
    const struct reach r = reach_of(a, j.b);
    int kv = j.head / a.group;

#pragma unroll 1
    for (int i = 0; i < r.tiles; i++, ++*tile) {
        int stage = *tile % STAGES, parity = *tile / STAGES % 2 ^ 1;
        int row = j.b.keys + r.begin + i * KEYS;
        uint32_t k = shared_address(&s->k[stage]);
        uint32_t v = shared_address(&s->v[stage]);

        barrier_wait(shared_address(&s->k_free[stage]), parity);
        barrier_expect(k, (int)sizeof(m->k[stage]));
        for (int p = 0; p < DQ / PANEL; p++) {
            uint32_t to = shared_address(m->k[stage][p]);
            int column = p * PANEL;

            if (a.tail && column >= a.key_dim)
                copy_box(to, &maps.tail, k, column - a.key_dim, 0, row);
            else
                copy_box(to, &maps.k, k, column, kv, row);
        }
        barrier_wait(shared_address(&s->v_free[stage]), parity);
        barrier_expect(v, (int)sizeof(m->v[stage]));
        for (int p = 0; p < DV / PANEL; p++)
            copy_box(shared_address(m->v[stage][p]), &maps.v, v, p * PANEL, kv,
                     row);
    }
}

/* One thread.  *taken counts the jobs behind the first of each block. */
template <int DQ, int DV>
static __device__ __forceinline__ void
copy_jobs(const struct attend_maps &maps, const struct attend_args &a,
          int *taken, struct shared *s, struct room<DQ, DV> *m)
{
    uint32_t q = shared_address(&s->q);
    struct job j = job_of(a, (int)blockIdx.x);
    int tile = 0;

    for (int n = 0;; n++) {
        int next;

        barrier_wait(shared_address(&s->q_free), n % 2 ^ 1);
        s->job = j;
        if (j.head < 0)
            break;
        next = (int)gridDim.x + atomicAdd(taken, 1);
        barrier_expect(q, (int)sizeof(m->q));
        for (int p = 0; p < DQ / PANEL; p++)
            copy_box(shared_address(m->q[p]), &maps.q, q, p * PANEL, j.head,
                     j.b.row);
        copy_tiles<DQ, DV>(maps, a, j, s, m, &tile);
        j = job_of(a, next);
    }
    barrier_arrive(q);
}

/* Grid: as many blocks as run at once. */
template <int DQ, int DV>
static __global__ void __launch_bounds__(THREADS, 1)
    attend_kernel(const __grid_constant__ struct attend_maps maps,
                  const __grid_constant__ struct attend_args a, int *taken)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ char memory[];
    __shared__ struct shared s;
    struct room<DQ, DV> *m =
        (struct room<DQ, DV> *)(((uintptr_t)memory + 1023) & ~(uintptr_t)1023);
    int group = __shfl_sync(~0u, (int)threadIdx.x / GROUP, 0);

    if (threadIdx.x == 0) {
        barrier_init(shared_address(&s.q), 1);
        barrier_init(shared_address(&s.q_free), EATERS / 32);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared_address(&s.k[i]), 1);
            barrier_init(shared_address(&s.v[i]), 1);
            barrier_init(shared_address(&s.k_free[i]), EATERS / 32);
            barrier_init(shared_address(&s.v_free[i]), EATERS / 32);
        }
        barriers_made();
    }
    __syncthreads();
    if (group == 0) {
        registers_fewer<COPY_REGISTERS>();
        if (threadIdx.x == 0)
            copy_jobs<DQ, DV>(maps, a, taken, &s, m);
    } else {
        registers_more<MULTIPLY_REGISTERS>();
        attend_jobs<DQ, DV>(a, &s, m, group - 1);
    }
#endif
}

/* ---- maps of tensors ---- */

/* A map of [rows, heads, dim] whose boxes are panels of `box` rows of a head. */
static int make_map(CUtensorMap *map, const struct forward_heads *h,
                    int64_t dim, int64_t heads, int64_t rows, int box,
                    struct err *e)
{
    int64_t head = heads > 1 ? h->head : h->row;
    struct tensor_shape s = {};

    s.p = h->p;
    s.dims[0] = (uint64_t)dim;
    s.dims[1] = (uint64_t)heads;
    s.dims[2] = (uint64_t)rows;
    s.strides[0] = (uint64_t)head * 2;
    s.strides[1] = (uint64_t)h->row * 2;
    s.box = (uint32_t)box;
    return tensor_map(map, &s, e);
}

static int make_maps(struct attend_maps *m, const struct forward_attend *a,
                     struct err *e)
{
    int64_t keys = a->past + a->rows, own = a->head_dim;
    int rc;

    if (a->tail.p) {
        own -= a->tail_dim;
        if ((rc = make_map(&m->tail, &a->tail, a->tail_dim, 1, keys, KEYS, e)) <
            0)
            return rc;
    }
    if ((rc = make_map(&m->q, &a->q, a->head_dim, a->n_heads, a->rows,
                       ATTEND_QUERIES, e)) < 0 ||
        (rc = make_map(&m->k, &a->k, own, a->n_kv_heads, keys, KEYS, e)) < 0)
        return rc;
    return make_map(&m->v, &a->v, a->v_dim, a->n_kv_heads, keys, KEYS, e);
}

/* ---- sizes that have a kernel ---- */

template <int DQ, int DV>
static int run(struct cuda_context *c, const struct attend_maps *m,
               const struct attend_args *a, int *taken, struct err *e)
{
    int bytes = (int)sizeof(struct room<DQ, DV>) + 1024;
    int64_t jobs = (int64_t)a->blocks * a->heads;
    int64_t blocks = jobs < c->processors ? jobs : c->processors;

    CUDA_TRY(cudaFuncSetAttribute(attend_kernel<DQ, DV>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  bytes));
    attend_kernel<DQ, DV>
        <<<(unsigned)blocks, THREADS, (size_t)bytes, c->stream>>>(*m, *a,
                                                                  taken);
    LAUNCHED();
    return 0;
}

static const struct size {
    int dim, v_dim, bytes;
    int (*run)(struct cuda_context *c, const struct attend_maps *m,
               const struct attend_args *a, int *taken, struct err *e);
} sizes[] = {
    { 64, 64, (int)sizeof(struct room<64, 64>), run<64, 64> },
    { 128, 128, (int)sizeof(struct room<128, 128>), run<128, 128> },
    { 192, 128, (int)sizeof(struct room<192, 128>), run<192, 128> },
};

static const struct size *size_for(const struct cuda_context *c, int64_t dim,
                                   int64_t v_dim)
{
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        if (dim <= sizes[i].dim && v_dim <= sizes[i].v_dim)
            return sizes[i].bytes + 2048 <= c->shared_memory ? &sizes[i] : NULL;
    return NULL;
}

bool attend_wgmma_takes(struct cuda_context *c, const struct forward_attend *a)
{
    static int known; /* a process has one context; 1: no, 2: yes */

    if (!known)
        known = 1 + hopper_has(c, (const void *)attend_kernel<64, 64>);
    return known == 2 && size_for(c, a->head_dim, a->v_dim) &&
           (!a->tail.p || (a->head_dim - a->tail_dim) % PANEL == 0);
}

int attend_wgmma(struct cuda_context *c, const struct forward_attend *a,
                 const struct attend_args *k, struct err *e)
{
    struct forward_state *s;
    struct attend_maps m;
    int rc;

    if ((rc = make_maps(&m, a, e)) < 0 || (rc = forward_state(c, &s, e)) < 0 ||
        (rc = buffer_need(c, &s->taken, sizeof(int), e)) < 0)
        return rc;
    CUDA_TRY(cudaMemsetAsync(s->taken.data, 0, sizeof(int), c->stream));
    return size_for(c, k->dim, k->v_dim)
        ->run(c, &m, k, (int *)s->taken.data, e);
}
