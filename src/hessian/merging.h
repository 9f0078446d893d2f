/* merging.h - the mean of moments of several inputs, weighted by their numbers of
 * samples and summed in double precision in the order in which they come. */
#ifndef FORGE_MERGING_H
#define FORGE_MERGING_H

#include "common/io/stream.h"

/* Zero-initialise; merging_release() when done. */
struct merging {
    uint64_t n;        /* numbers of the mean */
    uint64_t first;    /* they are numbers first.. of all moments */
    double *sum;       /* [n]: of what merging_add() got; NULL: nothing */
    struct left *left; /* [n_left]: payloads to be read, behind these */
    size_t n_left;
    float *mean; /* [n] */
};

/* Whether anything has come. */
static inline bool merging_begun(const struct merging *m)
{
    return m->sum || m->n_left;
}
/* Add the payload `data`, all moments of an input.  E_TEMP, and errors of reading those left
 * before. */
MUST_CHECK int merging_add(struct merging *m, const float *data,
                           uint64_t samples, struct err *e);
/* A payload of `len` bytes that stream_later() has left in `in`, at `at`: numbers start.. of
 * the moments of `samples` samples. */
struct merging_part {
    struct stream_reader *in;
    uint64_t at, len, start, samples;
};
/* Add it; one that overlaps with others has their numbers.  E_TEMP. */
MUST_CHECK int merging_leave(struct merging *m, const struct merging_part *p,
                             struct err *e);
/* *data: the mean [n], m's memory: sums divided by `samples`, those that each number has.
 * Reads what was left, a block at a time: those of the same numbers in step, by as many
 * threads; where each number comes once, all of them at the same time.  E_DATA: a payload
 * is damaged, or a number is missing; E_IO, E_TEMP. */
MUST_CHECK int merging_mean(struct merging *m, uint64_t samples,
                            const float **data, struct err *e);
void merging_release(struct merging *m);

#endif
