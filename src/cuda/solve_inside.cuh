/* solve_inside.cuh - what the solver's two files share. */
#ifndef FORGE_SOLVE_INSIDE_CUH
#define FORGE_SOLVE_INSIDE_CUH

#include "cuda/inside.cuh"

#define ROUNDER 12582912.0f /* rounds half to even when added and taken off */

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
