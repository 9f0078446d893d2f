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
    struct device_buffer pointers;      /* to matrices of products */
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
    /* The same `outer` times, apart_a, apart_b, apart_c numbers apart; 0: once. */
    int outer;
    int64_t apart_a, apart_b, apart_c;
    bool rounded; /* with b16: A is rounded to bf16 */
};
int backward_multiply(struct cuda_context *c, const struct backward_product &p,
                      struct err *e);

int backward_narrow(struct cuda_context *c, enum dtype t, const float *x,
                    int64_t n, void *to, struct err *e);
int backward_weights(struct cuda_context *c, const struct backward_weights *a,
                     struct err *e);
/* The same, of g and x in bf16. */
int backward_weights_bf16(struct cuda_context *c,
                          const struct backward_weights *a, struct err *e);
int backward_attend(struct cuda_context *c, const struct backward_attend *a,
                    struct err *e);
int backward_head(struct cuda_context *c, const struct backward_head *a,
                  struct err *e);
int backward_divergence(struct cuda_context *c,
                        const struct backward_divergence *a, struct err *e);

#endif
