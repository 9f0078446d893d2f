/* internal.cuh - what the files of the plug-in share: the context, checked calls,
 * buffers, and the stages on device pointers (for the API and for the bench).
 *
 * All work of a context goes through one stream.  Buffers of the context only
 * grow; they are freed when it closes. */
#ifndef FORGE_CUDA_INSIDE_CUH
#define FORGE_CUDA_INSIDE_CUH

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>

#include "common/math/quant.h"
#include "gptq/grid/grid_table.h"
#include "gptq/solve/solve_refined.h"
#include "gptq/solve/solve_table.h"
#include "hessian/hessian_table.h"
#include "layout/layout.h"

/* Return from the calling function with *e filled when a call failed. */
#define CUDA_TRY(call)                                                         \
    do {                                                                       \
        int rc_ = cuda_check((call), #call, e);                                \
        if (rc_ < 0)                                                           \
            return rc_;                                                        \
    } while (0)
#define BLAS_TRY(call)                                                         \
    do {                                                                       \
        cublasStatus_t st_ = (call);                                           \
        if (st_ != CUBLAS_STATUS_SUCCESS)                                      \
            return library_failed(e, "cuBLAS", (int)st_, #call);               \
    } while (0)
#define SOLVER_TRY(call)                                                       \
    do {                                                                       \
        cusolverStatus_t st_ = (call);                                         \
        if (st_ != CUSOLVER_STATUS_SUCCESS)                                    \
            return library_failed(e, "cuSOLVER", (int)st_, #call);             \
    } while (0)
#define LAUNCHED() CUDA_TRY(cudaGetLastError())

struct device_buffer {
    void *data;
    size_t cap;
};

enum {
    SOLVE_BLOCK = 128,  /* columns that one launch of the solver quantizes */
    SOLVE_SUPER = 1024, /* columns whose earlier pushes are one product */
    SOLVE_TILE = 64     /* rows of a block of threads */
};

enum {
    PIECES = 4,      /* pinned pieces of a context, */
    PIECE = 4 << 20, /* of this size: what pageable memory goes through */
    SLICE = 64 << 20 /* bytes of weights of a launch of grid and pack: what
                        comes after them is copied meanwhile */
};

enum { Q_COUNT = 65536 }; /* a qmeta4's exponents, by their 16 bits */

/* The two libraries, when they are needed; handle NULL: not yet. */
struct cuda_blas {
    cublasHandle_t handle;
    decltype(&cublasCreate) create;
    decltype(&cublasSetStream) set_stream;
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t,
                           int m, int n, int k, const void *alpha,
                           const void *a, cudaDataType, int lda, const void *b,
                           cudaDataType, int ldb, const void *beta, void *c,
                           cudaDataType, int ldc, cublasComputeType_t,
                           cublasGemmAlgo_t);
    cublasStatus_t (*gemm_batched)(
        cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n,
        int k, const void *alpha, const void *a, cudaDataType, int lda,
        long long stride_a, const void *b, cudaDataType, int ldb,
        long long stride_b, const void *beta, void *c, cudaDataType, int ldc,
        long long stride_c, int count, cublasComputeType_t, cublasGemmAlgo_t);
    decltype(&cublasStrsm) trsm;
};
struct cuda_solver {
    cusolverDnHandle_t handle;
    decltype(&cusolverDnCreate) create;
    decltype(&cusolverDnSetStream) set_stream;
    decltype(&cusolverDnSpotrf_bufferSize) potrf_room;
    decltype(&cusolverDnSpotrf) potrf;
};

struct piece {
    void *data; /* pinned */
    cudaEvent_t done;
};

struct cuda_context {
    int device;
    int processors, shared_memory; /* bytes that a block may ask for */
    cudaStream_t stream;
    struct cuda_blas blas;
    struct cuda_solver solver;
    float *scales[DT_BF16 + 1]; /* by dtype (F32, F16, BF16): [Q_COUNT] */
    double *powers;             /* scale^norm of powers_dtype: [Q_COUNT] */
    enum dtype powers_dtype;
    double powers_norm;
    unsigned long long *bad; /* the first element that is not finite */
    uint64_t limit, used;    /* bytes of buffers; limit 0: none */
    struct piece piece[PIECES];
    unsigned next_piece;
    union {
        struct device_buffer buffer[17];
        struct {
            /* of the solver and the other stages */
            struct device_buffer weight, meta, order, shifted, pushed, split;
            struct device_buffer codes, packed, loss;
            /* of the factor, of the grid */
            struct device_buffer work, info, fill, steps, importance;
            /* of the solver that refines */
            struct device_buffer second, gradient, moved;
        };
    };
};

/* n factors: L of matrix i by columns (lower triangle), padded to whole blocks
 * by an identity: L[r][c] at l[(i * padded + c) * padded + r].  split holds
 * each element as bf16 (high, low, high) for products in three parts:
 * split[((i * padded + c) * padded + r) * 3 + part].  Of factors for
 * solve_refined() h holds H in its place, in the factor's order, and drift E. */
struct cuda_factors {
    struct cuda_context *c;
    struct device_buffer room[6], drift;
    uint64_t cols, padded;
    int n;
    float *l;
    /* [n, padded, SOLVE_BLOCK]: L's diagonal blocks, by rows */
    float *diagonal;
    __nv_bfloat16 *split; /* or NULL, */
    float *h;             /* or this: H[r][c] as L, all of it, undamped */
    uint32_t *input;      /* [n, cols] */
    bool *dead;           /* [n, cols] */
    double *lambdas;      /* [n] */
    double *lambda;       /* [n], host */
    bool *failed;         /* [n], host */
};

int cuda_check(cudaError_t rc, const char *call, struct err *e);
int library_failed(struct err *e, const char *lib, int status,
                   const char *call);
/* Give back all that no stage is holding. */
void context_trim(struct cuda_context *c);
/* run(first, n) over the numbers below n, at most `batch` at a time: when
 * memory ends, all that no stage holds is given back, and it goes on with half
 * as many. */
template <class F>
static inline int in_batches(struct cuda_context *c, uint64_t n, uint64_t batch,
                             F run)
{
    uint64_t take;

    for (uint64_t i = 0; i < n; i += take) {
        int rc;

        take = n - i < batch ? n - i : batch;
        rc = run(i, take);
        if (rc == E_TEMP && take > 1) {
            context_trim(c);
            batch = take / 2;
            take = 0;
        } else if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

/* Before the first call of the library in a function of the table. */
int need_blas(struct cuda_context *c, struct err *e);
int need_solver(struct cuda_context *c, struct err *e);
/* n bytes of device memory.  E_TEMP: there is no more, or not allowed. */
int buffer_open(struct cuda_context *c, struct device_buffer *b, size_t n,
                struct err *e);
void buffer_close(struct cuda_context *c, struct device_buffer *b);
/* Room for at least n bytes; the old content is lost. */
int buffer_need(struct cuda_context *c, struct device_buffer *b, size_t n,
                struct err *e);
/* Bytes of rows that a launch takes: SLICE, or less of little memory. */
uint64_t slice_of(const struct cuda_context *c);
/* Host to device on the context's stream.  The memory is read before the call
 * returns, through pinned pieces while earlier ones are on their way. */
int upload(struct cuda_context *c, void *to, const void *from, size_t n,
           struct err *e);
/* Device to host; the memory is written when the call returns. */
int download(struct cuda_context *c, void *to, const void *from, size_t n,
             struct err *e);
/* Device memory of the scales of a dtype, made at the first use. */
int context_scales(struct cuda_context *c, enum dtype t, const float **scales,
                   struct err *e);
static inline uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Element i of x as float. */
template <enum dtype T>
__device__ __forceinline__ float load_weight(const void *x, size_t i)
{
    if (T == DT_F32)
        return ((const float *)x)[i];
    if (T == DT_F16)
        return __half2float(((const __half *)x)[i]);
    return __bfloat162float(((const __nv_bfloat16 *)x)[i]);
}

/* The scale of a qmeta4: exp2 of the fraction from mantissa[256] (quant_grid()
 * of 0..255 as F32), times a power of two, rounded to the stored dtype.  That
 * it is quant_grid() for every exponent is tested, for all 65,536. */
template <enum dtype T>
__device__ __forceinline__ float meta_scale(const float *mantissa,
                                            uint32_t meta)
{
    int q = (int16_t)(meta & 0xffff);
    float s = mantissa[q & 255] * __int_as_float(((q >> 8) + 127) << 23);

    return T == DT_F16 ? __half2float(__float2half_rn(s)) :
                         __bfloat162float(__float2bfloat16_rn(s));
}

/* Of a scale of up to 12 significant bits, as f16 and bf16 have them, and from
 * 2^-90 to 2^90; good for divide() below. */
__device__ __forceinline__ float reciprocal(float scale)
{
    float y;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(scale));
    return y;
}

/* w / scale, rounded as IEEE division rounds it.  One correction is enough:
 * the residual is exact, and a quotient by a number of 12 bits is never closer
 * than 2^-37 of itself to the middle between two floats, while what is left
 * of the error is below 2^-45.  Where the quotient is beyond 2^100 it is left
 * uncorrected (all that follows clamps it); below 2^-100 nothing can tell. */
__device__ __forceinline__ float divide(float w, float scale, float y)
{
    float q = w * y, r = fmaf(-q, scale, w), x = fmaf(r, y, q);

    return fabsf(q) < 0x1p100f ? x : q;
}

__device__ __forceinline__ int meta_zero(uint32_t meta)
{
    return meta >> 24 & QUANT_SYMMETRIC ? 8 : (int)(meta >> 16 & 15);
}

/* ---- stages on device pointers ---- */

/* Add x[tokens, cols] (bf16) times itself to the lower triangle of h[cols,
 * cols] by columns: (i, j <= i) at h[j * cols + i]; in panels of `panel`
 * columns.  first: h is written, not added to. */
int hessian_panels(struct cuda_context *c, const void *x, uint64_t tokens,
                   uint64_t cols, uint64_t panel, bool first, float *h,
                   struct err *e);
/* Packed triangles t[i].h of t[i].x, all of them the device's; cols is a
 * multiple of 8. */
int ragged_device(struct cuda_context *c, uint64_t cols,
                  const struct cuda_tokens *t, int n, struct err *e);
/* Lower Cholesky in place of n matrices by columns, leading dimension ld, ld *
 * ld apart; info[n] on the device.  Batched: one call for all. */
int factor_potrf(struct cuda_context *c, float *a, uint64_t cols, uint64_t ld,
                 int n, int *info, struct err *e);
/* split and diagonal from l. */
int factor_split(struct cuda_context *c, const struct cuda_factors *f,
                 struct err *e);

/* What the solver works on; n of each, columns padded to f->padded, all
 * transposed: rows are contiguous.  The rows of `share` modules lie one after
 * the other, each module's padded to SOLVE_TILE: its module_rows. */
struct solve_state {
    int share;
    uint64_t rows, module_rows; /* of a module */
    uint64_t padded_rows;       /* of all: share * module_rows */
    uint64_t groups;
    float *w;             /* [n, padded, padded_rows], in the factor's order */
    float *pushed;        /* as w: what earlier inputs push onto a column */
    __nv_bfloat16 *split; /* [n, padded, 3, padded_rows]: high, high, low */
    uint8_t *codes;       /* [n, padded, padded_rows] */
    uint32_t *meta;       /* [n, groups, padded_rows] */
    double *loss;         /* [n, padded_rows] */
    unsigned long long *bad; /* [n * share]: first weight not finite, or ~0 */
};
/* All blocks of all matrices. */
int solve_blocks(struct cuda_context *c, const struct solve_params *p,
                 const struct cuda_factors *f, const struct solve_state *s,
                 const float *scales, struct err *e);

/* Each group's importance divided by its largest, as normalise() of grid_cpu.c
 * does, into c->shifted. */
int grid_importance(struct cuda_context *c, const struct grid_params *p,
                    struct err *e);
/* first: what is added to the index of a weight that is not finite. */
int grid_device(struct cuda_context *c, const struct grid_params *p,
                const void *w, const float *importance, uint64_t first,
                uint32_t *meta, struct err *e);
/* What packing reads and writes, all of it the device's: words of a layout out
 * of codes, or the codes of weights rounded to nearest. */
struct pack_job {
    enum layout layout;  /* of codes; GPTQ and GPTQ_V2 have the same words */
    uint64_t rows, cols; /* multiples of 8 */
    uint64_t group;      /* of w: a multiple of 8 */
    enum dtype dtype;    /* of w: BF16, F16 or F32 */
    enum dtype scale_dtype;
    const void *w;         /* [rows, cols], or NULL */
    const uint32_t *meta;  /* [rows, ceil(cols/group)] of w */
    const uint32_t *codes; /* [rows, cols / 8] when w is NULL */
    uint32_t *out;         /* as packing.h describes them */
};
int pack_device(struct cuda_context *c, const struct pack_job *p,
                struct err *e);

/* ---- the table's functions ---- */

int cuda_hessian_open(struct cuda_hessian **h, struct cuda_context *c,
                      const struct hessian_shape *s, struct err *e);
int cuda_hessian_add(struct cuda_hessian *h, const void *x, uint64_t tokens,
                     struct err *e);
int cuda_hessian_finish(struct cuda_hessian *h, float *out, struct err *e);
void cuda_hessian_close(struct cuda_hessian *h);
int cuda_cross_open(struct cuda_cross **out, struct cuda_context *c,
                    const struct cross_shape *s, struct err *e);
int cuda_cross_add(struct cuda_cross *x, const void *y, const void *from,
                   uint64_t tokens, struct err *e);
int cuda_cross_finish(struct cuda_cross *x, double factor, float *out,
                      struct err *e);
void cuda_cross_close(struct cuda_cross *x);
int cuda_hessians(struct cuda_context *c, uint64_t cols,
                  const struct cuda_tokens *t, int n, struct err *e);
int cuda_factors_build(struct cuda_factors **f, struct cuda_context *c,
                       uint64_t cols, struct cuda_matrix *m, int n,
                       struct err *e);
int cuda_factors_drift(struct cuda_factors *f, const float *drift,
                       struct err *e);
int cuda_factors_read(const struct cuda_factors *f, int i, float *l,
                      struct err *e);
void cuda_factors_free(struct cuda_factors *f);
int cuda_solve(struct cuda_context *c, const struct solve_params *p,
               const struct cuda_factors *f, struct cuda_module *m, int n,
               struct err *e);
int cuda_solve_refined(struct cuda_context *c, const struct refined_params *p,
                       const struct refined_hessian *b, const void *w,
                       uint32_t *meta, uint8_t *codes, struct refined_result *r,
                       struct err *e);
int cuda_grid(struct cuda_context *c, const struct grid_params *p,
              const void *w, uint32_t *meta, struct err *e);
int cuda_nearest(struct cuda_context *c, const struct solve_params *p,
                 struct cuda_module *m, struct err *e);
int cuda_pack(struct cuda_context *c, enum layout l, uint32_t *out,
              const uint32_t *codes, uint64_t rows, uint64_t words,
              struct err *e);
int cuda_open(struct cuda_context **c, int device, uint64_t memory,
              struct err *e);

#endif
