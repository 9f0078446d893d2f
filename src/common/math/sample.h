/* sample.h - estimates of a sum from a sample of tiles of rows.
 *
 * Each tile has a known loss; what another method loses is measured of some tiles:
 *     sum(other, sample) * sum(loss, all) / sum(loss, sample)
 * exact where the sample is all tiles.  Sums are in the order of the tiles, so that
 * whoever has their figures gets the same bits. */
#ifndef FORGE_SAMPLE_H
#define FORGE_SAMPLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum { SAMPLE_ROWS = 48 /* of a tile; the last may have fewer */ };

struct sample {
    double all, some, other;
    uint64_t rows, compared; /* numbers of rows */
};

/* other: NAN where it is not measured. */
static inline void sample_add(struct sample *s, double loss, double other,
                              uint64_t rows)
{
    bool compared = !isnan(other);

    s->all += loss;
    s->some += compared ? loss : 0;
    s->other += compared ? other : 0;
    s->rows += rows;
    s->compared += compared ? rows : 0;
}

/* 0: no tile was measured. */
static inline double sample_estimate(const struct sample *s)
{
    return s->compared == s->rows ? s->other :
           s->some > 0            ? s->other * s->all / s->some :
           s->compared ? s->other * (double)s->rows / (double)s->compared :
                         0;
}

#endif
