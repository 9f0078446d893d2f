/* grouped.cuh - bf16 products of many groups of rows in one launch (grouped_cuda.cu): a
 * layer's experts, each with as many tokens as were routed to it. */
#ifndef FORGE_CUDA_GROUPED_CUH
#define FORGE_CUDA_GROUPED_CUH

#include "cuda/forward_internal.cuh"

/* C[m, n] = op(A) op(B), sums in f32; matrices are row-major and contiguous, begin at
 * multiples of 16 bytes, and their rows have multiples of 8 numbers. */
struct grouped {
    const bf16 *a, *b;
    void *c;
    int64_t m, n, k;
};

/* Of a linear W[out, in]: y = x Wᵀ, A [m, k] and B [n, k]; the gradient with respect to
 * x, A [m, k] and B [k, n]; that with respect to W, A [k, m] and B [k, n]. */
enum grouped_form { GROUPED_FORWARD, GROUPED_BACK, GROUPED_WEIGHTS };
/* C is bf16, or f32, which may be added to. */
enum grouped_ending { GROUPED_BF16, GROUPED_F32, GROUPED_ADD };

/* A sum's order depends on k alone.  E_CONFIG: too many tiles; E_TEMP. */
int grouped_multiply(struct cuda_context *c, enum grouped_form form,
                     enum grouped_ending ending, const struct grouped *list,
                     int64_t groups, struct err *e);

/* Rows that belong to tokens: row[token * top_k + k], -1 for none, is one's k-th, and
 * those of a token are added in ascending order. */
struct grouped_rows {
    int64_t tokens, top_k, n;
    const int64_t *row;
    int64_t first, end; /* other rows than first..end-1 are left out */
    const float
        *weight; /* of a choice, token * top_k + k, or of a row; NULL: 1 */
    bool weight_of_row;
};
/* sum[token, n] += weight * from[row - first, n], from of elements t. */
int grouped_add(struct cuda_context *c, const struct grouped_rows &r,
                enum dtype t, const void *from, float *sum, struct err *e);

/* Where the groups that are processed together end: those from number `at` on with at
 * most `most` rows, or one.  first [groups + 1]. */
static inline int64_t grouped_end(const int64_t *first, int64_t groups,
                                  int64_t at, int64_t most)
{
    int64_t end = at + 1;

    while (end < groups && first[end + 1] - first[at] <= most)
        end++;
    return end;
}

#endif
