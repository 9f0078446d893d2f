/* fp8.h - matrices of 8-bit floats with scales, as numbers.
 *
 * w[o][c] = value(data[o][c]) * scale[o / block_rows][c / block_cols]: one
 * product in float, rounded once more where bf16 is wanted.  Blocks at the
 * right and lower edge may be ragged.  "weight_scale_inv" of DeepSeek's
 * checkpoints is this factor too, whatever its name says. */
#ifndef FORGE_FP8_H
#define FORGE_FP8_H

#include "common/math/dtype.h"

struct fp8_matrix {
    enum dtype dtype;    /* DT_F8_E4M3 or DT_F8_E5M2 */
    const uint8_t *data; /* [rows, cols] */
    uint64_t rows, cols;
    const float *scale; /* [ceil(rows/block_rows), ceil(cols/block_cols)] */
    uint64_t block_rows, block_cols; /* at least 1 */
};

/* out: [rows, cols], in any number of threads the same. */
void fp8_to_bf16(uint16_t *out, const struct fp8_matrix *m);
void fp8_to_f32(float *out, const struct fp8_matrix *m);

#endif
