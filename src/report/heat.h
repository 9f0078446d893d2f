/* heat.h - maps of rows and columns, coloured by a value: a table whose cells
 * show it, or with many columns an SVG that stretches with the window. */
#ifndef FORGE_HEAT_H
#define FORGE_HEAT_H

#include "report/chart.h"

enum {
    HEAT_SHADES = 12, /* of a colour: classes h0..h11, on the other side of the
                         mean k1..k11 */
    HEAT_DIGITS = 16  /* tables of more columns scroll in narrow windows, so
                         that their digits stay readable */
};

/* `arg` is passed to the callbacks. */
struct heat {
    size_t rows, cols;
    const char *row_name, *col_name; /* "layer", "expert" */
    const char *unit;                /* of the value, for titles */
    /* NAN: no value, the cell stays empty */
    double (*value)(const void *arg, size_t row, size_t col);
    void (*row_label)(const void *arg, size_t row, char label[LABEL_MAX]);
    void (*col_label)(const void *arg, size_t col, char label[LABEL_MAX]);
    const void *arg;
    /* false: shades go from the smallest value to the largest.  true: values are
     * ratios to a mean, 1 is blank, and logarithmic shades go as far as most
     * values do; 0 has a colour of its own */
    bool around_one;
};

/* With the scale of its colours.  E_TEMP. */
MUST_CHECK int chart_heat(struct html *h, const struct heat *p, struct err *e);

#endif
