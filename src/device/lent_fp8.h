/* lent_fp8.h - weights that are lent as they are stored, in 8-bit floats, for a reader
 * that makes bf16 of them on its GPU.
 *
 * The frame is that of the bf16 weight, a LOAN in the host's memory, and its payload is
 * a struct lent_fp8.  The memory has the codes [rows, cols], and behind them, from a
 * multiple of 64 bytes on, the scales [blocks down, blocks across] as f32. */
#ifndef FORGE_LENT_FP8_H
#define FORGE_LENT_FP8_H

#include "common/math/fp8.h"
#include "device/ledger.h"

/* What the frame says of its memory: as struct fp8_matrix has it. */
struct lent_fp8 {
    uint32_t dtype; /* DT_F8_E4M3 or DT_F8_E5M2 */
    uint32_t zero;
    uint64_t block_rows, block_cols; /* at least 1 */
};

/* Where the scales begin, from the codes on; bytes of both.  Of m, whose shape is that of
 * a frame, neither data nor scales are looked at. */
static inline size_t lent_fp8_scales(const struct fp8_matrix *m)
{
    return (m->rows * m->cols + 63) / 64 * 64;
}
static inline size_t lent_fp8_bytes(const struct fp8_matrix *m)
{
    return lent_fp8_scales(m) + fp8_down(m) * fp8_across(m) * sizeof(float);
}
/* What the frame says of m. */
struct lent_fp8 lent_fp8_of(const struct fp8_matrix *m);
/* Whether f is lent so: 1: *m is its weight, in the ledger's memory; 0: it is not.
 * E_DATA: its payload is malformed, or its memory is not as long; E_TEMP: both name f. */
MUST_CHECK int lent_fp8(struct ledger *l, const struct frame *f,
                        struct fp8_matrix *m, struct err *e);
/* Where f's weight is, lent or not: *data; or it is *m, and *data NULL.  Errors as
 * lent_fp8() and ledger_payload(). */
MUST_CHECK int lent_weight(struct ledger *l, const struct frame *f,
                           const void **data, struct fp8_matrix *m,
                           struct err *e);

#endif
