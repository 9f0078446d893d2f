/* chart.h - charts as HTML: bars and dots are boxes placed in percent, lines an
 * SVG that stretches with them.  So a chart is as wide as the window, and its
 * text as large as that of the page.  Colours are CSS classes.  Every mark has a
 * title, which browsers show as a tooltip. */
#ifndef FORGE_CHART_H
#define FORGE_CHART_H

#include "report/axis.h"
#include "report/html.h"

enum { LABEL_MAX = 96 };

/* Values along an axis as text. */
typedef void label_text(double v, char label[LABEL_MAX]);

/* A bar chart: groups of bars, side by side, or stacked.  `arg` is passed to
 * the callback. */
struct bars {
    size_t groups, series;
    const char *const *series_name;
    const char *const *series_class; /* CSS */
    const char *x_name, *y_name;     /* "layer", "loss" */
    double (*value)(const void *arg, size_t group, size_t series);
    label_text *text; /* of a value */
    const void *arg;
    bool stacked;
};

/* Groups are numbered from 0; bars whose value is not finite are left out. */
void chart_bars(struct html *h, const struct bars *p);

/* A line of a chart. */
struct series {
    const char *name, *class; /* CSS */
    size_t n;
    const double *x, *y;  /* [n], finite; x in ascending order */
    const double *spread; /* [n]: half the width of a band around the line; or
                             NULL */
};

struct lines {
    const struct series *series; /* [count]; the first is drawn last */
    size_t count;
    const char *x_name, *y_name;
    label_text *x_text, *y_text;
    bool x_log;         /* x > 0, on a logarithmic axis */
    bool y_log;         /* the same of y */
    bool whole;         /* x are whole numbers, each a step of the axis */
    const double *step; /* whole: what x_text writes for each x, from 0 on;
                           NULL: x itself */
    bool top;           /* the y axis ends at 1 instead of starting at 0 */
    bool area; /* steps up to each x, filled for the first, instead of lines */
};

/* With a legend if there is more than one line. */
void chart_lines(struct html *h, const struct lines *p);

/* "3"; a number in few digits; "0.851"; "4.16"; "12.5 %" of 0.125. */
label_text text_whole, text_plain, text_ratio, text_bits, text_percent;

#endif
