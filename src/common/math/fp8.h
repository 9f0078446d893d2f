/* fp8.h - dequantization of 8-bit floats with block scales.
 *
 * w[o][c] = value(data[o][c]) * scale[o / block_rows][c / block_cols],
 * computed in f32 and rounded once more for bf16.  Blocks at the right and
 * lower edges may be smaller.  DeepSeek's "weight_scale_inv" is this factor
 * too, in spite of its name. */
#ifndef FORGE_FP8_H
#define FORGE_FP8_H

#include "common/math/dtype.h"

/* A matrix of 8-bit floats and its block scales; pointers are borrowed. */
struct fp8_matrix {
    enum dtype dtype;    /* DT_F8_E4M3 or DT_F8_E5M2 */
    const uint8_t *data; /* [rows, cols], row-major */
    uint64_t rows, cols;
    const float *scale; /* [ceil(rows/block_rows), ceil(cols/block_cols)] */
    uint64_t block_rows, block_cols; /* at least 1 */
};

/* Blocks side by side, and below each other; rows and cols are at least 1. */
static inline uint64_t fp8_across(const struct fp8_matrix *m)
{
    return (m->cols - 1) / m->block_cols + 1;
}
static inline uint64_t fp8_down(const struct fp8_matrix *m)
{
    return (m->rows - 1) / m->block_rows + 1;
}

C_BEGIN

/* out [rows, cols]; by all threads, with results that do not depend on their
 * number. */
void fp8_to_bf16(uint16_t *out, const struct fp8_matrix *m);
void fp8_to_f32(float *out, const struct fp8_matrix *m);
/* out[n] = what fp8_to_bf16() makes of elements col..col+n-1 of a row, as f32. */
void fp8_piece(float *out, const struct fp8_matrix *m, uint64_t row,
               uint64_t col, uint64_t n);
/* The largest |w| as bf16, in one thread; infinity and NaN are the largest.  0 for other
 * types. */
float fp8_most(const struct fp8_matrix *m);

C_END

#endif
