/* internal.cuh - what the files of the plug-in share: the context, checked
 * calls, buffers, and the stages' functions on device pointers (for the tables
 * and for bench/).
 *
 * All work of a context but loan_fetch() goes through one CUDA stream, so that calls
 * need no synchronization among themselves.  Buffers of the context only grow;
 * context_trim() frees them. */
#ifndef FORGE_CUDA_INTERNAL_CUH
#define FORGE_CUDA_INTERNAL_CUH

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>

#include "common/math/quant.h"
#include "device/device.h"
#include "gptq/grid/grid_table.h"
#include "gptq/solve/solve_refined.h"
#include "gptq/solve/solve_room.h"
#include "gptq/solve/solve_table.h"
#include "hessian/hessian_table.h"
#include "layout/layout.h"
#include "pack/round.h"

/* Return from the calling function, with *e filled, when the call fails. */
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
    SOLVE_SUPER = 1024 /* columns that get error feedback by one product */
};

enum {
    PIECES = 4,      /* pinned staging buffers of a context, */
    PIECE = 4 << 20, /* and their size in bytes */
    SLICE = 64 << 20 /* bytes of weights per launch of grid and pack: the next
                        slice is copied during the launch */
};

enum { Q_COUNT = 65536 }; /* number of a qmeta4's exponents (16 bits) */

/* The two libraries, loaded by need_blas() and need_solver(); handle NULL: not
 * loaded. */
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
    void *data;       /* pinned host memory */
    cudaEvent_t done; /* the last copy from or to it has ended */
};

struct cuda_context {
    int device;
    int processors,
        shared_memory; /* bytes of shared memory per block, at most */
    cudaStream_t stream;
    cudaStream_t fetches; /* for loan_fetch(), of all threads */
    struct cuda_blas blas;
    struct cuda_solver solver;
    float *scales[DT_BF16 + 1]; /* [F32, F16, BF16][Q_COUNT]: decoded scales */
    double *powers;             /* [Q_COUNT]: scale^powers_norm */
    enum dtype powers_dtype;
    double powers_norm;
    unsigned long long *bad; /* device: least index of an element not finite */
    uint64_t limit, used;    /* bytes of buffers; limit 0: no limit */
    struct piece piece[PIECES];
    unsigned next_piece;
    union {
        struct device_buffer buffer[26];
        struct {
            /* the solver and the other stages */
            struct device_buffer weight, meta, order, shifted, pushed, split;
            struct device_buffer codes, packed, loss;
            /* the factor, the grid search */
            struct device_buffer work, info, fill, steps, importance;
            /* of the solver that refines */
            struct device_buffer second, gradient, moved, square, inverse;
            /* of 4-bit products; w4_arrived holds zeros between launches */
            struct device_buffer w4_x, w4_unit, w4_table, w4_parts, w4_arrived;
            struct device_buffer w4_dense, w4_sums;
            struct device_buffer roots; /* of the weights of tokens */
        };
    };
};

/* n factors: L of matrix i by columns (lower triangle), padded to whole blocks
 * by an identity: L[r][c] at l[(i * padded + c) * padded + r].  split holds
 * each element as bf16 (high, low, high) for products in three parts:
 * split[((i * padded + c) * padded + r) * 3 + part].  Of factors for
 * solve_refined() the same of H, in the factor's order and undamped, is in whole,
 * and E in drift. */
struct cuda_factors {
    struct cuda_context *c;
    struct device_buffer room[FACTOR_ROOMS], drift;
    uint64_t cols, padded;
    int n;
    float *l;
    /* [n, padded, SOLVE_BLOCK]: L's diagonal blocks, by rows; of whole matrices
     * what L and H have of each group, see refined_squares() */
    float *diagonal, *curve;
    __nv_bfloat16 *split;
    __nv_bfloat16 *whole; /* or NULL: not for solve_refined() */
    bool laid;            /* diagonal and curve are made, for one plan */
    uint32_t *input;      /* [n, cols] */
    bool *dead;           /* [n, cols] */
    double *lambdas;      /* [n] */
    double *lambda;       /* [n], host */
    float *prior;         /* [n], host: cuda_matrix.prior */
    bool *failed;         /* [n], host */
};

/* The error of a CUDA call: 0, E_TEMP (out of device memory) or E_DEVICE. */
int cuda_check(cudaError_t rc, const char *call, struct err *e);
/* The same for a failed call of cuBLAS or cuSOLVER. */
int library_failed(struct err *e, const char *lib, int status,
                   const char *call);
/* Free the context's buffers.  Buffers opened by a stage (factors,
 * accumulators) stay. */
void context_trim(struct cuda_context *c);
/* Call run(first, count) for the numbers 0..n-1, at most `batch` at a time.
 * When it returns E_TEMP, trim the context and go on with half as many. */
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

/* Bytes that may be allocated now, as forward_table.h's room. */
int context_room(struct cuda_context *c, size_t *n, struct err *e);
int context_facts(struct cuda_context *c, bool factors, struct device_facts *f,
                  struct err *e);
/* Load cuBLAS, cuSOLVER: to be called by every table function before it uses
 * them.  E_DEVICE: cannot be loaded; E_TEMP. */
int need_blas(struct cuda_context *c, struct err *e);
int need_solver(struct cuda_context *c, struct err *e);
/* Allocate n bytes of device memory in stream order.  E_TEMP: no memory, or
 * beyond c->limit. */
int buffer_open(struct cuda_context *c, struct device_buffer *b, size_t n,
                struct err *e);
void buffer_close(struct cuda_context *c, struct device_buffer *b);
/* Make room for at least n bytes; the old content is lost.  E_TEMP. */
int buffer_need(struct cuda_context *c, struct device_buffer *b, size_t n,
                struct err *e);
/* Bytes of rows per launch: SLICE, or less under a small c->limit. */
uint64_t slice_of(const struct cuda_context *c);
/* Host to device on the context's stream, through pinned pieces.  `from` has
 * been read when the call returns; the copy to the device may still be
 * running. */
int upload(struct cuda_context *c, void *to, const void *from, size_t n,
           struct err *e);
/* upload(), or a copy on the device where `from` is there. */
int bring(struct cuda_context *c, void *to, const void *from, size_t n,
          bool there, struct err *e);
/* *there = roots[n] of the weights of tokens on the device, until the next call; NULL: they
 * are alike. */
int bring_roots(struct cuda_context *c, const float *roots, uint64_t n,
                const float **there, struct err *e);
/* bring() of rows[n, cols] in bf16; with roots of bring_roots(), their products with
 * these, rounded to nearest: rows that are there. */
int bring_rows(struct cuda_context *c, void *to, const void *from, uint64_t n,
               uint64_t cols, bool there, const float *roots, struct err *e);
/* n bytes that are the host's or the device's, where kernels read them: in their
 * place, or in room. */
int on_device(struct cuda_context *c, const float *from, size_t n,
              struct device_buffer *room, const float **there, struct err *e);
/* to[n, cols] = what fp8_to_bf16() makes of rows first..first+n-1 of m, the host's; room:
 * fp8_room() bytes of the device, aligned to 64; `to` is to 16 where cols are a multiple of
 * 16. */
uint64_t fp8_room(const struct fp8_matrix *m, uint64_t n);
int fp8_widen(struct cuda_context *c, const struct fp8_matrix *m,
              uint64_t first, uint64_t n, void *to, void *room, struct err *e);
/* c->weight = rows first..first+n-1 of W [.., cols] of dtype: of w, or widened from fp8.
 * It may move, and has room for n rows at least. */
struct weight_rows {
    const void *w;
    const struct fp8_matrix *fp8; /* NULL: w */
    enum dtype dtype;
    uint64_t cols, first, n;
};
int bring_weight(struct cuda_context *c, const struct weight_rows *r,
                 struct err *e);
/* Device to host; the memory is written when the call returns. */
int download(struct cuda_context *c, void *to, const void *from, size_t n,
             struct err *e);
/* *scales = device array [Q_COUNT] of the scales of type t, made at the first
 * use. */
int context_scales(struct cuda_context *c, enum dtype t, const float **scales,
                   struct err *e);

/* Element i of x, of type T, as float. */
template <enum dtype T>
__device__ __forceinline__ float load_weight(const void *x, size_t i)
{
    if (T == DT_F32)
        return ((const float *)x)[i];
    if (T == DT_F16)
        return __half2float(((const __half *)x)[i]);
    return __bfloat162float(((const __nv_bfloat16 *)x)[i]);
}

/* The scale of a qmeta4, rounded to the stored type T: 2^fraction from
 * mantissa[256] (quant_grid() of the exponents 0..255 as F32) times a power of
 * two.  A test compares it with quant_grid() for all 65,536 exponents. */
template <enum dtype T>
__device__ __forceinline__ float meta_scale(const float *mantissa,
                                            uint32_t meta)
{
    int q = (int16_t)(meta & 0xffff);
    float s = mantissa[q & 255] * __int_as_float(((q >> 8) + 127) << 23);

    return T == DT_F16 ? __half2float(__float2half_rn(s)) :
                         __bfloat162float(__float2bfloat16_rn(s));
}

/* 1 / scale, approximately, for divide().  scale: from 2^-90 to 2^90, of at
 * most 12 significant bits (f16 and bf16 have 11 and 8). */
__device__ __forceinline__ float reciprocal(float scale)
{
    float y;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(scale));
    return y;
}

/* w / scale, correctly rounded (as IEEE division); y = reciprocal(scale).  One
 * correction is enough: the residual is exact, a quotient by a number of 12
 * bits is never closer than 2^-37 (relative) to the middle between two floats,
 * and the error after the correction is below 2^-45.  A quotient beyond 2^100
 * is left uncorrected (callers clamp it), and errors below 2^-100 have no
 * effect. */
__device__ __forceinline__ float divide(float w, float scale, float y)
{
    float q = w * y, r = fmaf(-q, scale, w), x = fmaf(r, y, q);

    return fabsf(q) < 0x1p100f ? x : q;
}

__device__ __forceinline__ int meta_zero(uint32_t meta)
{
    return meta >> 24 & QUANT_SYMMETRIC ? 8 : (int)(meta >> 16 & 15);
}

/* ---- stages on device pointers; errors: E_TEMP, E_DEVICE ---- */

/* h += XᵀX for X = x[tokens, cols] in bf16, lower triangle of h[cols, cols],
 * column-major ((i, j <= i) at h[j * cols + i]), in panels of `panel` columns.
 * first: h = XᵀX. */
int hessian_panels(struct cuda_context *c, const void *x, uint64_t tokens,
                   uint64_t cols, uint64_t panel, bool first, float *h,
                   struct err *e);
/* t[i].h = the Hessian of t[i].x, as hessian_table.batch(), all on the device;
 * cols is a multiple of 8. */
int ragged_device(struct cuda_context *c, uint64_t cols,
                  const struct cuda_tokens *t, int n, struct err *e);
/* The same by one kernel or the other; inputs with the most tokens first are best.
 * ragged_wgmma(): only where ragged_wgmma_runs(), on Hopper.  Both return E_CONFIG where
 * there are too many tiles. */
bool ragged_wgmma_runs(struct cuda_context *c);
int ragged_wgmma(struct cuda_context *c, uint64_t cols,
                 const struct cuda_tokens *t, int n, struct err *e);
int ragged_mma(struct cuda_context *c, uint64_t cols,
               const struct cuda_tokens *t, int n, struct err *e);
/* Lower Cholesky factors in place of n column-major matrices [cols, cols] of
 * leading dimension ld, ld * ld elements apart.  info[n], on the device: 0, or
 * the matrix is not positive definite (cuSOLVER's potrf). */
int factor_potrf(struct cuda_context *c, float *a, uint64_t cols, uint64_t ld,
                 int n, int *info, struct err *e);
/* to[3 k + part] = from[k]: high, what is left of it, high. */
int factor_parts(struct cuda_context *c, __nv_bfloat16 *to, const float *from,
                 size_t n, struct err *e);
/* split and diagonal from l. */
int factor_split(struct cuda_context *c, const struct cuda_factors *f,
                 struct err *e);

/* The weights of a batch in the solver: n matrices, transposed (the rows of a
 * column are contiguous), columns in the factor's order and padded to
 * f->padded.  A matrix stacks the rows of `share` modules that share its
 * factor, each module's padded to module_rows, a multiple of SOLVE_TILE. */
struct solve_state {
    int share;
    uint64_t rows, module_rows; /* of a module; the same, padded */
    uint64_t padded_rows;       /* of a matrix: share * module_rows */
    uint64_t groups;
    float *w;             /* [n, padded, padded_rows] */
    float *pushed;        /* as w: error feedback onto a column, d L */
    __nv_bfloat16 *split; /* [n, padded, 3, padded_rows]: d as bf16, high, high,
                             low */
    uint8_t *codes;       /* [n, padded, padded_rows] */
    uint32_t *meta;       /* [n, groups, padded_rows] */
    double *loss;         /* [n, padded_rows] */
    unsigned long long *bad; /* [n * share]: index of the first weight that is
                                not finite, or ~0 */
};
/* GPTQ over all columns of all matrices: codes, d and losses. */
int solve_blocks(struct cuda_context *c, const struct solve_params *p,
                 const struct cuda_factors *f, const struct solve_state *s,
                 const float *scales, struct err *e);

/* c->importance = p->importance, each group's divided by its maximum, as
 * normalise() of grid_cpu.c. */
int grid_importance(struct cuda_context *c, const struct grid_params *p,
                    struct err *e);
/* grid_table.search() on device pointers, for rows of a matrix.  importance: of
 * grid_importance(), or NULL.  first: index of w's first element in the whole
 * matrix, for *c->bad. */
int grid_device(struct cuda_context *c, const struct grid_params *p,
                const void *w, const float *importance, uint64_t first,
                uint32_t *meta, struct err *e);
/* pack_device(): words of a layout from codes, or from weights that are rounded
 * to nearest on the way.  All pointers are the device's. */
struct pack_job {
    enum layout layout;  /* of out; GPTQ and GPTQ_V2 have the same words */
    uint64_t rows, cols; /* multiples of 8 */
    uint64_t group;      /* with w: a multiple of 8 */
    enum dtype dtype;    /* of w: BF16, F16 or F32 */
    enum dtype scale_dtype;
    const void *w;         /* [rows, cols]; NULL: codes are given */
    const uint32_t *meta;  /* with w: qmeta4 [rows, ceil(cols/group)] */
    const uint32_t *codes; /* without w: [rows, cols / 8] */
    uint32_t *out;         /* laid out as in pack/packing.h */
};
int pack_device(struct cuda_context *c, const struct pack_job *p,
                struct err *e);
/* cuda_round(), all pointers the device's.  The first unsigned of *c->bad becomes 1
 * where a weight is not finite, or a scale beyond F16. */
int round_device(struct cuda_context *c, const struct round_params *p,
                 enum layout l, const void *w, uint32_t *meta, uint32_t *out,
                 struct err *e);

/* ---- functions of the stages' tables, documented there ---- */

void context_begin(int device);
int context_prepare(struct cuda_context *c, bool factors, struct err *e);
int loan_block(struct cuda_context *c, void **p, size_t n, struct err *e);
void loan_drop(struct cuda_context *c, void *p);
int loan_handle(struct cuda_context *c, const void *block,
                uint8_t handle[DEVICE_HANDLE], struct err *e);
int loan_map(struct cuda_context *c, const uint8_t handle[DEVICE_HANDLE],
             const void **p, struct err *e);
int loan_fetch(struct cuda_context *c, void *host, const void *from, size_t n,
               struct err *e);
int loan_settle(struct cuda_context *c, struct err *e);

int cuda_hessian_open(struct cuda_hessian **h, struct cuda_context *c,
                      const struct hessian_shape *s, struct err *e);
int cuda_hessian_add(struct cuda_hessian *h, const void *x, uint64_t tokens,
                     bool there, const float *root, struct err *e);
int cuda_hessian_finish(struct cuda_hessian *h, float *out, bool there,
                        struct err *e);
void cuda_hessian_close(struct cuda_hessian *h);
int cuda_cross_open(struct cuda_cross **out, struct cuda_context *c,
                    const struct cross_shape *s, struct err *e);
int cuda_cross_add(struct cuda_cross *x, const void *y, const void *from,
                   uint64_t tokens, bool there, const float *root,
                   struct err *e);
int cuda_cross_finish(struct cuda_cross *x, double factor, float *out,
                      bool there, struct err *e);
void cuda_cross_close(struct cuda_cross *x);
int cuda_hessians(struct cuda_context *c, uint64_t cols,
                  const struct cuda_tokens *t, int n, struct err *e);
int cuda_finite(struct cuda_context *c, enum dtype t, const void *x, uint64_t n,
                uint64_t *first, struct err *e);
int cuda_diagonal(struct cuda_context *c, const float *h, uint64_t cols,
                  float *d, struct err *e);
int cuda_blend(struct cuda_context *c, float *h, const float *prior,
               uint64_t cols, double own, float add, struct err *e);
int cuda_factors_build(struct cuda_factors **f, struct cuda_context *c,
                       uint64_t cols, struct cuda_matrix *m, int n,
                       struct err *e);
int cuda_factors_drift(struct cuda_factors *f, int i, const float *drift,
                       struct err *e);
int cuda_factors_read(const struct cuda_factors *f, int i, float *l,
                      struct err *e);
void cuda_factors_free(struct cuda_factors *f);
int cuda_solve(struct cuda_context *c, const struct solve_params *p,
               const struct cuda_factors *f, struct cuda_module *m, int n,
               struct err *e);
int cuda_solve_refined(struct cuda_context *c, const struct refined_params *p,
                       const struct refined_hessian *b, struct cuda_refined *m,
                       int n, struct err *e);
int cuda_grid(struct cuda_context *c, const struct grid_params *p,
              const void *w, uint32_t *meta, struct err *e);
int cuda_nearest(struct cuda_context *c, const struct solve_params *p,
                 struct cuda_module *m, struct err *e);
int cuda_round(struct cuda_context *c, const struct round_params *p,
               enum layout l, const void *w, uint32_t *meta, uint32_t *out,
               struct err *e);
int cuda_pack(struct cuda_context *c, enum layout l, uint32_t *out,
              const uint32_t *codes, uint64_t rows, uint64_t words,
              struct err *e);
int cuda_open(struct cuda_context **c, int device, uint64_t memory,
              struct err *e);

#endif
