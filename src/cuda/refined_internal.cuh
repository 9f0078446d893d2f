/* refined_internal.cuh - what the files of the refined solver
 * (gptq/solve/solve_refined.h) share.
 *
 * All arrays are transposed, as in the solver: the `pitch` rows of a column are
 * contiguous, columns in the factor's order.  A group of up to REFINED_WIDE
 * adjacent columns is one launch; a block of threads owns REFINED_ROWS rows,
 * and several threads share a row. */
#ifndef FORGE_BEST_INSIDE_CUH
#define FORGE_BEST_INSIDE_CUH

#include "cuda/solve_internal.cuh"

enum {
    REFINED_WIDE = 128,   /* columns of a group, at most */
    REFINED_ROWS = 16,    /* of a block of threads */
    REFINED_SUB = 32,     /* columns that a thread holds in registers */
    REFINED_SUPER = 1024, /* columns of a super-block (refined_pass_cuda.cu) */
    REFINED_TILE = 64     /* rows are padded to a multiple of it */
};

/* Rows of one weight on the device. */
struct refined_state {
    uint64_t rows, pitch; /* pitch: rows, padded to REFINED_TILE */
    uint64_t padded, groups;
    float *w;        /* [padded, pitch]: the target */
    float *d;        /* [padded, pitch]: w - q */
    float *gradient; /* [REFINED_SUPER + REFINED_WIDE, pitch]: d L or d H of the
                        current columns */
    float *moved;    /* [REFINED_WIDE, pitch]: the changes of a group's d */
    uint8_t *codes;  /* [padded, pitch] */
    uint32_t *meta;  /* [groups, pitch] */
    double *loss;    /* [padded / REFINED_WIDE, pitch] */
    double *factors; /* [n]: block_factor() */
    int *any;        /* device flag: the sweep has moved a code or a scale */
    const float *mantissa; /* [256], see meta_scale() */
};

/* Arguments of a group's kernel: pointers to its first column. */
struct refined_group {
    const float *w;
    float *d;
    const float *gradient; /* error feedback d L, or the gradient d H */
    float *moved;
    uint8_t *codes;
    uint32_t *meta;      /* [pitch]: of this group */
    const float *square; /* L or H: column c from row c0 at square + c * ld */
    uint64_t pitch, ld;
    uint32_t n; /* columns: a multiple of 8 */
    const float *mantissa;
    const double *factors;
    int n_factors, candidates;
    bool symmetric, negative;
    bool given; /* plain GPTQ on the grids in meta: only d is computed */
    int *any;
};

/* The scale of a qmeta4 with its sign. */
template <enum dtype S>
static __device__ __forceinline__ float refined_scale(const float *mantissa,
                                                      uint32_t meta)
{
    float s = meta_scale<S>(mantissa, meta);

    return meta >> 24 & QUANT_NEGATIVE ? -s : s;
}

/* quant_meta() on the device; about log2 see grid_cuda.cu. */
template <enum dtype S>
static __device__ __forceinline__ uint32_t refined_meta(float scale, int zero,
                                                        bool symmetric)
{
    double lo = S == DT_F16 ? -14 * 256 : -126 * 256;
    double hi = S == DT_F16 ? 16 * 256 - 1 : 128 * 256 - 2, q = 0;

    if (!(scale > 0) || !isfinite(scale))
        zero = 8;
    else
        q = fmin(fmax(rint(log2((double)scale) * 256), lo), hi);
    return (uint32_t)(uint16_t)(int16_t)q |
           (uint32_t)(symmetric ? 8 : zero) << 16 |
           (symmetric ? (uint32_t)QUANT_SYMMETRIC << 24 : 0);
}

/* sum[j..j+7][r] += sum over k of x[k][r] P[k][j..j+7], for the REFINED_SUB
 * columns k from `first` on; rows(k) is the address of row k of P. */
template <class Rows>
static __device__ __forceinline__ void
refined_push(float (*sum)[REFINED_ROWS], const float (*x)[REFINED_ROWS],
             int first, int j, int r, Rows rows)
{
    float acc[SOLVE_PUSH];

#pragma unroll
    for (int i = 0; i < SOLVE_PUSH; i++)
        acc[i] = sum[j + i][r];
#pragma unroll 8
    for (int k = first; k < first + REFINED_SUB; k++)
        solve_push(acc, x[k][r], rows(k) + j);
#pragma unroll
    for (int i = 0; i < SOLVE_PUSH; i++)
        sum[j + i][r] = acc[i];
}

/* n rounded up to whole sub-blocks of REFINED_SUB columns. */
static __device__ __forceinline__ int refined_columns(uint32_t n)
{
    return (int)((n + REFINED_SUB - 1) / REFINED_SUB * REFINED_SUB);
}

/* Launch a group's kernel for `pitch` rows: choose its grids and quantize it
 * (refined_group_cuda.cu), or move its codes and scales
 * (refined_descent_cuda.cu). */
int refined_choose(struct cuda_context *c, enum dtype scale_dtype,
                   const struct refined_group *g, struct err *e);
int refined_descend(struct cuda_context *c, enum dtype scale_dtype,
                    const struct refined_group *g, struct err *e);
/* A pass over all groups of a matrix: plain GPTQ on the grids that are set,
 * GPTQ with chosen grids, or a sweep of coordinate descent. */
enum refined_step { REFINED_PLAIN, REFINED_CHOOSE, REFINED_DESCENT };
struct refined_pass {
    const struct refined_params *p;
    const struct cuda_factors *f;
    const struct tile_plan *plan;
    const struct refined_state *s;
    enum refined_step what;
};
int refined_walk(struct cuda_context *c, const struct refined_pass *j,
                 struct err *e);
/* Sweeps of coordinate descent until nothing moves, at most j->p->sweeps. */
int refined_sweep(struct cuda_context *c, const struct refined_pass *j,
                  struct err *e);
/* loss[rows], on the host, = d H dᵀ. */
int refined_measure(struct cuda_context *c, const struct cuda_factors *f,
                    const struct refined_state *s, double *loss, struct err *e);
/* Move the targets s->w, in the order of f (gptq/solve/target.h); s->d is
 * scratch. output: G or F of these rows, on the host, inputs as stored; NULL:
 * use E. */
int refined_move_target(struct cuda_context *c, const struct refined_params *p,
                        const struct cuda_factors *f,
                        const struct refined_state *s, const float *output,
                        struct err *e);
/* to[m, n] = alpha a[m, k] b[k, n] + beta to in f32, column-major; leading
 * dimensions m, and ldb of b. */
struct refined_product {
    uint64_t n, k;
    float alpha;
    const float *a, *b;
    uint64_t ldb;
    float beta;
    float *to;
};
int refined_product(struct cuda_context *c, uint64_t m,
                    struct refined_product p, struct err *e);

#endif
