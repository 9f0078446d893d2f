/* values.h - the elements of any tensor as numbers, and what can be said of
 * them.  For looking, not for computing. */
#ifndef FORGE_VALUES_H
#define FORGE_VALUES_H

#include "common/math/dtype.h"

enum { HISTOGRAM_BINS = 16 };

/* Elements [from, from + n) of a tensor of type t; a qmeta4 is its scale. */
void values_get(double *dst, enum dtype t, const void *data, uint64_t from,
                size_t n);

/* min, max, mean and std (of the population) are over the finite values and 0
 * when there are none. */
struct stats {
    uint64_t count, zeros, nonfinite;
    double min, max, mean, std;
};
void values_stats(struct stats *s, enum dtype t, const void *data,
                  uint64_t count);
/* bins[i]: values from min + i*w to min + (i+1)*w, w = (max - min) / 16, the
 * last bin with its upper end. */
void values_histogram(uint64_t bins[HISTOGRAM_BINS], const struct stats *s,
                      enum dtype t, const void *data);

#endif
