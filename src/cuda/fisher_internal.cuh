/* fisher_internal.cuh - what the two files of rows together share. */
#ifndef FORGE_CUDA_FISHER_INTERNAL_CUH
#define FORGE_CUDA_FISHER_INTERNAL_CUH

#include "cuda/refined_internal.cuh"

enum { FISHER_ROWS = 64 }; /* of a block of threads */

/* Rows of modules that have the same F, and columns of a group, for the kernels:
 * pointers to the first of both in matrix 0, columns `pitch` apart. */
struct fisher_group {
    const float *gradient; /* [modules, REFINED_SUPER, ld]: G, n columns */
    float *pushed;         /* the same: v [ld, REFINED_WIDE] */
    /* [modules, ld / FISHER_ROWS] and one, zero at first: steps of v that are
     * there; last, the number of blocks that have begun */
    int *published;
    const float *fisher; /* [ld, ld] */
    const float *square; /* H, n rows of REFINED_WIDE */
    const float *w;
    float *d;
    __nv_bfloat16 *split;
    uint8_t *codes;
    const uint32_t *meta;  /* of group 0 */
    const uint32_t *input; /* [cols]: of the first column, which input it is */
    const float *mantissa;
    uint64_t pitch, ld, padded, cols, groups;
    uint32_t group; /* inputs of one */
    int first, modules, share;
    int n, rows; /* rows: of these that there are */
    int *any;
};

/* The same of module number i alone: of its `modules`, not of the state's. */
static __host__ __device__ __forceinline__ struct fisher_group
fisher_of(struct fisher_group a, int i)
{
    uint64_t matrix = (uint64_t)((a.first + i) / a.share);
    uint64_t row = (uint64_t)((a.first + i) % a.share) * a.ld;
    uint64_t at = matrix * a.padded * a.pitch + row;

    a.gradient += i * REFINED_SUPER * a.ld;
    a.pushed += i * REFINED_SUPER * a.ld;
    a.square += matrix * a.padded * REFINED_WIDE;
    a.w += at;
    a.d += at;
    a.split += 3 * matrix * a.padded * a.pitch + row;
    a.codes += at;
    a.meta += matrix * a.groups * a.pitch + row;
    a.input += matrix * a.cols;
    return a;
}

/* Move the codes of a group of columns, all rows of the modules. */
int fisher_group_move(struct cuda_context *c, enum dtype scale_dtype,
                      const struct fisher_group *a, struct err *e);

#endif
