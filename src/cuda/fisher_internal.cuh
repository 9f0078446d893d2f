/* fisher_internal.cuh - what the two files of rows together share. */
#ifndef FORGE_CUDA_FISHER_INTERNAL_CUH
#define FORGE_CUDA_FISHER_INTERNAL_CUH

#include "cuda/refined_internal.cuh"

enum { FISHER_ROWS = 64 }; /* of a block of threads */

/* Rows of a module and columns of a group, for the kernel: pointers to the first
 * of both, columns `pitch` apart. */
struct fisher_group {
    const float *gradient; /* [n, ld]: G */
    float *pushed;         /* [ld, REFINED_WIDE]: v */
    /* [ld / FISHER_ROWS + 1], zero at first: steps of v that are there; last, the
     * number of blocks that have begun */
    int *published;
    const float *fisher; /* [ld, ld] */
    const float *square; /* [n, REFINED_WIDE]: H */
    const float *w;
    float *d;
    __nv_bfloat16 *split;
    uint8_t *codes;
    const uint32_t *meta;
    const float *mantissa;
    uint64_t pitch, ld;
    int n, rows; /* rows: of these that there are */
    int *any;
};

/* Move the codes of a group of columns, `blocks` times FISHER_ROWS rows. */
int fisher_group_move(struct cuda_context *c, enum dtype scale_dtype,
                      const struct fisher_group *a, uint64_t blocks,
                      struct err *e);

#endif
