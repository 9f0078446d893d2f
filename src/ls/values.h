/* values.h - the elements of a tensor of any type as doubles, and their
 * statistics; for display. */
#ifndef FORGE_VALUES_H
#define FORGE_VALUES_H

#include "common/math/dtype.h"

enum { HISTOGRAM_BINS = 16 };

/* dst[n] = elements from..from+n-1 of a tensor of type t; for a qmeta4 its
 * scale. */
void values_get(double *dst, enum dtype t, const void *data, uint64_t from,
                size_t n);

/* min, max, mean and std (population, divided by n) are over the finite
 * elements; 0 when there are none. */
struct stats {
    uint64_t count, zeros, nonfinite;
    double min, max, mean, std;
};
/* *s = the statistics of data[count] of type t. */
void values_stats(struct stats *s, enum dtype t, const void *data,
                  uint64_t count);
/* bins[i] = number of elements v with min + i w <= v < min + (i+1) w, w = (max
 * - min) / 16; the last bin includes max.  s: the statistics of the same
 * data. */
void values_histogram(uint64_t bins[HISTOGRAM_BINS], const struct stats *s,
                      enum dtype t, const void *data);

#endif
