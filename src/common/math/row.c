/* row.c - see row.h. */
#include "common/math/row.h"

#include <inttypes.h>
#include <math.h>

#include "common/math/lanes.h"

int row_check(const float *x, uint64_t n, uint64_t row, uint64_t first,
              struct err *e)
{
    if (lanes_finite(x, n))
        return 0;
    for (; isfinite(*x); x++)
        first++;
    return err_set(e, E_DATA,
                   "row %" PRIu64 ": input %" PRIu64 " is not finite", row,
                   first);
}

int row_load(float *x, const void *w, enum dtype t, uint64_t cols, uint64_t row,
             uint64_t first, uint64_t n, struct err *e)
{
    const char *from =
        (const char *)w + (row * cols + first) * (dtype_bits(t) / 8);

    return to_f32(x, from, t, n) ?
               row_check(x, n, row, first, e) :
               err_set(e, E_DATA, "%s is no float type", dtype_name(t));
}
