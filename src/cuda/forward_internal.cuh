/* forward_internal.cuh - what the files of the forward pass share.  Elements
 * are f32 or bf16; intermediate results are rounded where the CPU's forward
 * pass rounds. */
#ifndef FORGE_CUDA_FORWARD_INTERNAL_CUH
#define FORGE_CUDA_FORWARD_INTERNAL_CUH

#include "cuda/internal.cuh"
#include "model/forward_table.h"

typedef __nv_bfloat16 bf16;

/* The forward pass's buffers: sums of products, x widened to f32, what a router
 * works with, the table of rows of the last forward_attend(), a counter of its jobs,
 * its parts, and what linear attention works with.  One per process. */
struct forward_state {
    struct device_buffer sums, widened, routed, table, taken, parts, recurs,
        experts;
    void *table_host; /* copy of the table's content */
    size_t table_bytes;
};
/* *s = the process's, made at the first use.  E_TEMP. */
int forward_state(struct cuda_context *c, struct forward_state **s,
                  struct err *e);

static __device__ __forceinline__ float load(const float *x)
{
    return *x;
}

static __device__ __forceinline__ float load(const bf16 *x)
{
    return __bfloat162float(*x);
}

static __device__ __forceinline__ void store(float *to, float x)
{
    *to = x;
}

static __device__ __forceinline__ void store(bf16 *to, float x)
{
    *to = __float2bfloat16_rn(x);
}

/* x rounded to the type T. */
template <class T> static __device__ __forceinline__ float rounded(float x)
{
    return x;
}

template <> __device__ __forceinline__ float rounded<bf16>(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* 16 bytes of elements, loaded and stored at once. */
template <class T> struct pack {
    static const int n = 16 / sizeof(T);
    alignas(16) T x[n];
};

enum {
    WARP = 32,
    ROW = 256 /* threads of a block of a row, or of EACH() */
};

/* Number of blocks of ROW threads for n elements. */
static inline unsigned blocks_for(int64_t n)
{
    int64_t blocks = (n + ROW - 1) / ROW;

    return (unsigned)(blocks < 1 << 20 ? blocks : 1 << 20);
}

/* Elements i of n, in a grid of blocks_for(n). */
#define EACH(i, n)                                                             \
    for (int64_t i = (int64_t)blockIdx.x * ROW + threadIdx.x; i < (n);         \
         i += (int64_t)gridDim.x * ROW)

/* The sum of x over a warp, in a fixed order; all threads get it. */
template <class F> static __device__ __forceinline__ F warp_sum(F x)
{
    for (int i = WARP / 2; i; i >>= 1)
        x += __shfl_xor_sync(~0u, x, i);
    return x;
}

/* The same over a block of BLOCK threads. */
template <int BLOCK, class F> static __device__ F block_sum(F x)
{
    __shared__ F part[BLOCK / WARP];
    F sum = 0;

    x = warp_sum(x);
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int i = 0; i < BLOCK / WARP; i++)
        sum += part[i];
    __syncthreads();
    return sum;
}

/* The maximum over a block of BLOCK threads; all threads get it. */
template <int BLOCK> static __device__ float block_most(float x)
{
    __shared__ float part[BLOCK / WARP];

    for (int i = WARP / 2; i; i >>= 1)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int i = 0; i < BLOCK / WARP; i++)
        x = fmaxf(x, part[i]);
    __syncthreads();
    return x;
}

/* Whether rows of n elements, ld apart, from p on consist of whole packs
 * aligned to 16 bytes. */
template <class T>
static inline bool aligned_rows(const T *p, int64_t n, int64_t ld)
{
    return ((uintptr_t)p & 15) == 0 && n % pack<T>::n == 0 &&
           ld % pack<T>::n == 0;
}

/* run<float> or run<bf16>. */
#define BY_DTYPE(t, run, ...)                                                  \
    ((t) == DT_BF16 ? run<bf16>(__VA_ARGS__) : run<float>(__VA_ARGS__))

int forward_alloc(struct cuda_context *c, void **p, size_t n, bool spill,
                  bool *spilled, struct err *e);
void forward_release(struct cuda_context *c, void *p);
int forward_fp8(struct cuda_context *c, const struct fp8_matrix *m, void **w,
                struct err *e);
int forward_codes(struct cuda_context *c, const struct forward_codes *a,
                  void **w, struct err *e);
/* Pinned memory of the host, zeroed, which forward_table.release() frees. */
int forward_pinned(struct cuda_context *c, void **p, size_t n, struct err *e);
int forward_norm(struct cuda_context *c, const struct forward_norm *a,
                 struct err *e);
int forward_product(struct cuda_context *c, const struct forward_product *a,
                    struct err *e);
int forward_pair(struct cuda_context *c, const struct forward_pair *a,
                 struct err *e);
int forward_gather(struct cuda_context *c, const struct forward_rows *r,
                   void *to, const void *from, struct err *e);
int forward_experts(struct cuda_context *c, const struct forward_experts *a,
                    struct err *e);
int forward_sums(struct cuda_context *c, const struct forward_sums *a,
                 struct err *e);
/* The sums of forward_sums(), a->y aside, on the device: *y [rows, n], until the
 * next product. */
int forward_sums_there(struct cuda_context *c, const struct forward_sums *a,
                       float **y, struct err *e);
int forward_draw(struct cuda_context *c, const struct forward_draw *a,
                 struct err *e);
int forward_route(struct cuda_context *c, const struct forward_route *a,
                  struct err *e);
int forward_attend(struct cuda_context *c, const struct forward_attend *a,
                   struct err *e);

int forward_turn(struct cuda_context *c, const struct forward_attend *a,
                 struct err *e);
int forward_add_times(struct cuda_context *c, const struct forward_add_times *a,
                      struct err *e);
int forward_predict(struct cuda_context *c, const struct forward_streams *a,
                    struct err *e);
int forward_join(struct cuda_context *c, const struct forward_streams *a,
                 struct err *e);
int forward_correct(struct cuda_context *c, const struct forward_streams *a,
                    struct err *e);
int forward_sparsify(struct cuda_context *c, enum dtype t, double cutoff,
                     void *g, int64_t rows, int64_t n, struct err *e);
/* E_BUG: keys are wider than HEAD_DIM_MAX. */
int forward_recur(struct cuda_context *c, const struct forward_recur *a,
                  struct err *e);
int forward_gate_heads(struct cuda_context *c,
                       const struct forward_gate_heads *a, struct err *e);

/* A block of consecutive queries of a sequence. */
struct attend_block {
    int row, first, n; /* row of its first query, that query's position in the
                          sequence, number of queries */
    int keys;          /* row of the sequence's first token */
};

/* Arguments of the attention kernels; *_row, *_head: strides in elements. */
struct attend_args {
    const void *q, *k, *v, *tail;
    int64_t q_row, q_head, k_row, k_head, v_row, v_head, tail_row;
    int dim, key_dim, v_dim; /* of a query; of it in k, the rest is in tail; of
                                a value */
    int group;               /* query heads per key-value head */
    int64_t window;
    float scale;
    int64_t out_row;
    void *out;
    const struct attend_block *block;
    int blocks, heads;
    /* not of those on tensor cores; as in struct forward_attend */
    int chunk;
    float cap;
    const float *sinks;
};

/* Whether attend_mma(), bf16 on tensor cores, has a kernel for these sizes;
 * otherwise attend_mma() returns E_CONFIG. */
bool attend_mma_takes(const struct cuda_context *c,
                      const struct forward_attend *a);
int attend_mma(struct cuda_context *c, const struct attend_args *a,
               struct err *e);
enum { ATTEND_QUERIES = 128 }; /* queries per attend_block */
/* Whether Hopper's attend_wgmma() is better at a call that attend_mma_takes(): the
 * GPU and the plug-in have it, and it has a kernel for these sizes. */
bool attend_wgmma_takes(struct cuda_context *c, const struct forward_attend *a);
/* k: a's arguments.  E_TEMP, E_DEVICE. */
int attend_wgmma(struct cuda_context *c, const struct forward_attend *a,
                 const struct attend_args *k, struct err *e);
/* Whether attend_decode() takes a call: one new row of each sequence, behind those of
 * its cache, whose rows of heads consist of whole packs. */
bool attend_decode_takes(const struct forward_attend *a);
/* k: a's arguments.  E_TEMP, E_DEVICE. */
int attend_decode(struct cuda_context *c, const struct forward_attend *a,
                  const struct attend_args *k, struct err *e);

#endif
