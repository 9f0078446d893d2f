/* solve_internal.cuh - what the files of the solver and of the refined solver
 * share. */
#ifndef FORGE_CUDA_SOLVE_INTERNAL_CUH
#define FORGE_CUDA_SOLVE_INTERNAL_CUH

#include "cuda/internal.cuh"

/* x + ROUNDER - ROUNDER rounds x to an integer, half to even (1.5 * 2^23) */
#define ROUNDER 12582912.0f

enum { SOLVE_PUSH = 8 }; /* columns that get error feedback at a time */

/* acc[0..7] += d row[0..7], a piece of a row of L or of H. */
static __device__ __forceinline__ void solve_push(float acc[SOLVE_PUSH],
                                                  float d, const float *row)
{
    float4 a = *(const float4 *)row, b = *(const float4 *)(row + 4);

    acc[0] = fmaf(d, a.x, acc[0]);
    acc[1] = fmaf(d, a.y, acc[1]);
    acc[2] = fmaf(d, a.z, acc[2]);
    acc[3] = fmaf(d, a.w, acc[3]);
    acc[4] = fmaf(d, b.x, acc[4]);
    acc[5] = fmaf(d, b.y, acc[5]);
    acc[6] = fmaf(d, b.z, acc[6]);
    acc[7] = fmaf(d, b.w, acc[7]);
}

/* Arguments of the solver's kernels; members as in struct solve_state and
 * struct cuda_factors. */
struct block_args {
    const float *diagonal, *w, *pushed, *mantissa;
    const uint32_t *meta, *input;
    const double *lambda;
    __nv_bfloat16 *split;
    uint8_t *codes;
    double *loss;
    uint64_t padded, padded_rows, groups, cols;
    uint32_t group;
    uint32_t c0; /* the block's first column */
};

/* Transpose the rows of c->weight, of type t: w[c * pitch + r] = W[r][input[c]]
 * in the order of matrix i of f, 0 for dead inputs and in the padding.  *bad =
 * the smallest index of a weight that is not finite. */
struct transposed_weights {
    uint64_t rows, pitch;
    float *w;
    unsigned long long *bad;
};
int solve_transpose_weights(struct cuda_context *c,
                            const struct cuda_factors *f, int i, enum dtype t,
                            struct transposed_weights to, struct err *e);
/* meta[g * pitch + r] = the grids [rows][groups] in c->packed, transposed. */
int solve_transpose_grids(struct cuda_context *c, uint64_t rows,
                          uint64_t groups, uint64_t pitch, uint32_t *meta,
                          struct err *e);
/* c->packed = words [rows][cols / 8] of codes[c * pitch + r], inputs as stored.
 * c->order must have room for [cols]. */
int solve_transpose_codes(struct cuda_context *c, const struct cuda_factors *f,
                          int i, uint64_t rows, uint64_t pitch,
                          const uint8_t *codes, struct err *e);

/* Round to nearest: codes, displacements and losses. */
int solve_nearest(struct cuda_context *c, const struct solve_params *p,
                  const struct cuda_factors *f, const struct solve_state *s,
                  const float *mantissa, struct err *e);
/* Whether to use 128 rows per block of threads, not 64: shared memory suffices,
 * and the launch still fills the device. */
bool solve_large_blocks(const struct cuda_context *c,
                        const struct solve_state *s, int n);
/* Quantize the block of SOLVE_BLOCK columns at a->c0 of n matrices. */
int solve_block(struct cuda_context *c, enum dtype scale_dtype,
                const struct block_args *a, int n, bool large, struct err *e);

#endif
