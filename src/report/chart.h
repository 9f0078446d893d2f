/* chart.h - pictures as inline SVG: no script, colours by CSS classes, so that
 * they follow the page's light and dark.  Every mark has a <title>, which
 * browsers show under the pointer, unless there are thousands of them. */
#ifndef FORGE_CHART_H
#define FORGE_CHART_H

#include "report/html.h"

enum { LABEL_MAX = 96, CHART_WIDTH = 960 };

/* A colour for each of rows x cols values. */
struct heat {
    size_t rows, cols;
    const char *col_name; /* what the columns are: "layer" */
    const char *unit;     /* what a value is, for titles */
    /* NAN: nothing there */
    double (*value)(const void *arg, size_t row, size_t col);
    void (*row_label)(const void *arg, size_t row, char label[LABEL_MAX]);
    void (*col_label)(const void *arg, size_t col, char label[LABEL_MAX]);
    const void *arg;
    /* false: from low (faint) to high (strong).  true: values are shares of
     * what is usual: 1 is blank, 8 and 1/8 are the ends, 0 has its own
     * colour */
    bool around_one;
    double low, high;
};

void chart_heat(struct html *h, const struct heat *p);

/* Groups of bars, side by side or, stacked, on top of each other. */
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

/* Values that are not finite are left out.  Draws its legend, too. */
void chart_bars(struct html *h, const struct bars *p);

/* One line over x = 0 .. n-1, with a band around it. */
struct line {
    size_t n;
    const char *x_name, *y_name;
    double (*value)(const void *arg, size_t i);
    double (*spread)(const void *arg, size_t i); /* half the band; NULL */
    void (*x_label)(const void *arg, size_t i, char label[LABEL_MAX]);
    void (*text)(double value, char label[LABEL_MAX]);
    const void *arg;
    const char *class; /* CSS */
    bool percent;      /* the axis ends at 1 instead of starting at 0 */
};

void chart_line(struct html *h, const struct line *p);

#endif
