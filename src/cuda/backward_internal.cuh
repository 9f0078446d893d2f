/* backward_internal.cuh - what the files of the backward pass share. */
#ifndef FORGE_CUDA_BACKWARD_INTERNAL_CUH
#define FORGE_CUDA_BACKWARD_INTERNAL_CUH

#include "arch/device_bytes.h"
#include "cuda/forward_internal.cuh"
#include "model/backward_table.h"

/* The backward pass's buffers, one of each per process: of an MLP, attention or
 * the head, which run one after the other; rows of scores and gradients. */
struct backward_state {
    struct device_buffer work, scores;
    struct device_buffer narrow, parts; /* operands of a product in bf16 */
};
struct backward_state *backward_state(void);
enum { LINE = 128 }; /* numbers: operands begin at multiples */

/* C[m, n] = alpha op(A) op(B) + beta C in f32, row-major: A is [m, k], or [k, m]
 * if ta; B [k, n], or [n, k] if tb.  `count` such products, whose matrices are
 * stride_a, stride_b, stride_c numbers apart. */
struct backward_product {
    bool ta, tb;
    int64_t m, n, k;
    float alpha;
    const float *a;
    int64_t lda, stride_a;
    const float *b;
    /* A and B in bf16, instead of a and b; NULL: they are not.  count 1; with b16
     * alone A is contiguous, not transposed, with a16 both are. */
    const void *a16, *b16;
    int64_t ldb, stride_b;
    float beta;
    float *c;
    int64_t ldc, stride_c;
    int count;
    bool rounded; /* with b16: A is rounded to bf16; without: A and B to TF32 */
};
int backward_multiply(struct cuda_context *c, const struct backward_product &p,
                      struct err *e);

/* W of a linear or an MLP, and how its products are made. */
struct backward_matrix {
    const void *w;
    bool bf16;    /* w is; or f32 */
    bool rounded; /* then the other operand is rounded */
    bool both;    /* or is of bf16, too */
};
/* y[rows, n] = x[rows, k] W, with W [k, n], or transposed [n, k]; added to y if
 * `add`.  Rows are contiguous. */
int backward_times(struct cuda_context *c, int64_t rows, const void *x,
                   int64_t k, struct backward_matrix w, bool transposed,
                   float *y, int64_t n, bool add, struct err *e);

int backward_squares(struct cuda_context *c, const float *x, int64_t rows,
                     int64_t n, float *to, struct err *e);
int backward_narrow(struct cuda_context *c, enum dtype t, const float *x,
                    int64_t n, void *to, struct err *e);
int backward_weights(struct cuda_context *c, const struct backward_weights *a,
                     struct err *e);
/* The same, of g and x in bf16. */
int backward_weights_bf16(struct cuda_context *c,
                          const struct backward_weights *a, struct err *e);
int backward_mlp(struct cuda_context *c, const struct backward_mlp *a,
                 struct err *e);
int backward_experts(struct cuda_context *c, const struct backward_experts *a,
                     struct err *e);
int backward_attend(struct cuda_context *c, const struct backward_attend *a,
                    struct err *e);
int backward_head(struct cuda_context *c, const struct backward_head *a,
                  struct err *e);
int backward_divergence(struct cuda_context *c,
                        const struct backward_divergence *a, struct err *e);

#endif
