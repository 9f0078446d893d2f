/* solve_internal.cuh - what the solver's two files share. */
#ifndef FORGE_SOLVE_INSIDE_CUH
#define FORGE_SOLVE_INSIDE_CUH

#include "cuda/internal.cuh"

#define ROUNDER 12582912.0f /* rounds half to even when added and taken off */

enum { SOLVE_PUSH = 8 }; /* columns that are pushed onto at a time */

/* acc[0..7] += d times eight neighbours of a row of the factor, or of H. */
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

/* What a kernel of the solver works on: see struct solve_state and struct
 * cuda_factors. */
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

/* The rows of c->weight, of type t, into a factor's order, matrix i of f: w[c][r],
 * 0 for dead inputs and in the padding, `pitch` rows apart.  The smallest index
 * of a weight that is not finite is left in *bad. */
struct transposed_weights {
    uint64_t rows, pitch;
    float *w;
    unsigned long long *bad;
};
int solve_transpose_weights(struct cuda_context *c,
                            const struct cuda_factors *f, int i, enum dtype t,
                            struct transposed_weights to, struct err *e);
/* The grids in c->packed, [rows][groups]: meta[g][r]. */
int solve_transpose_grids(struct cuda_context *c, uint64_t rows,
                          uint64_t groups, uint64_t pitch, uint32_t *meta,
                          struct err *e);
/* And codes out of it: c->packed gets words[rows][cols / 8]; c->order has room
 * for an order. */
int solve_transpose_codes(struct cuda_context *c, const struct cuda_factors *f,
                          int i, uint64_t rows, uint64_t pitch,
                          const uint8_t *codes, struct err *e);

/* Codes, displacements and their loss at the nearest values. */
int solve_nearest(struct cuda_context *c, const struct solve_params *p,
                  const struct cuda_factors *f, const struct solve_state *s,
                  const float *mantissa, struct err *e);
/* 128 rows a block of threads where that fills the device and fits. */
bool solve_large_blocks(const struct cuda_context *c,
                        const struct solve_state *s, int n);
/* Quantize the block of columns at a->c0 of n matrices. */
int solve_block(struct cuda_context *c, enum dtype scale_dtype,
                const struct block_args *a, int n, bool large, struct err *e);

#endif
