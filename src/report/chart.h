/* chart.h - charts as inline SVG, without scripts; colours are CSS classes,
 * which follow the page's light or dark style.  Every mark has a <title>, which
 * browsers show as a tooltip, unless there are thousands of marks. */
#ifndef FORGE_CHART_H
#define FORGE_CHART_H

#include "report/html.h"

enum { LABEL_MAX = 96, CHART_WIDTH = 960 };

/* A heat map: a colour for each of rows x cols values.  In all three charts
 * `arg` is passed to the callbacks, which write labels of less than LABEL_MAX
 * bytes. */
struct heat {
    size_t rows, cols;
    const char *col_name; /* name of a column: "layer" */
    const char *unit;     /* name of the value, for titles */
    /* NAN: no value, the cell stays empty */
    double (*value)(const void *arg, size_t row, size_t col);
    void (*row_label)(const void *arg, size_t row, char label[LABEL_MAX]);
    void (*col_label)(const void *arg, size_t col, char label[LABEL_MAX]);
    const void *arg;
    /* false: the colour scale goes from low (faint) to high (strong).  true:
     * values are ratios: 1 is blank, 8 and 1/8 are the ends of a logarithmic
     * scale, 0 has a colour of its own; low and high are ignored */
    bool around_one;
    double low, high;
};

void chart_heat(struct html *h, const struct heat *p);

/* A bar chart: groups of bars, side by side, or stacked. */
struct bars {
    size_t groups, series;
    const char *const *series_name;
    const char *const *series_class; /* CSS */
    const char *group_name;          /* "layer" */
    double (*value)(const void *arg, size_t group, size_t series);
    void (*group_label)(const void *arg, size_t group, char label[LABEL_MAX]);
    void (*text)(double value, char label[LABEL_MAX]); /* for titles */
    const void *arg;
    bool stacked;
};

/* Bars whose value is not finite are left out.  With a legend. */
void chart_bars(struct html *h, const struct bars *p);

/* A line chart over x = 0..n-1, with a band around the line. */
struct line {
    size_t n;
    const char *x_name, *y_name;
    double (*value)(const void *arg, size_t i);
    /* half the width of the band; NULL: no band */
    double (*spread)(const void *arg, size_t i);
    void (*x_label)(const void *arg, size_t i, char label[LABEL_MAX]);
    void (*text)(double value, char label[LABEL_MAX]);
    const void *arg;
    const char *class; /* CSS */
    bool percent;      /* the axis ends at 1 instead of starting at 0 */
};

void chart_line(struct html *h, const struct line *p);

#endif
