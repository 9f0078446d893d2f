/* round.h - weights rounded to nearest on the grid that spans each group: what
 * forge-grid --search absmax and forge-solve --method rtn do, to the bit, in one
 * pass over the weights. */
#ifndef FORGE_PACK_ROUND_H
#define FORGE_PACK_ROUND_H

#include "common/base.h"
#include "common/math/dtype.h"

struct round_params {
    const char *name;           /* of the weight, for messages */
    uint64_t rows, cols, group; /* cols: even */
    bool symmetric;
    enum dtype dtype, scale_dtype; /* of w, any float type; DT_F16 or DT_BF16 */
};

/* meta[rows, ceil(cols / group)]: qmeta4 of w[rows, cols]; codes[rows, cols / 2], as
 * streams store them.  By all threads.  E_DATA: a weight is not finite; E_CONFIG:
 * a group needs a larger scale than F16 has; both name the row.  E_TEMP. */
MUST_CHECK int round_absmax(const struct round_params *p, const void *w,
                            uint32_t *meta, uint8_t *codes, struct err *e);

#endif
