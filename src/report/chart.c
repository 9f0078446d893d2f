/* chart.c - see chart.h. */
#include "report/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    LEFT = 190,   /* width of a heat map's row labels */
    LEVELS = 16,  /* shades of a colour */
    MARKS = 4096, /* beyond so many cells they have no titles */
    AXIS = 56,    /* width of the y axis of bars and lines */
    TOP = 12,
    PLOT = 200, /* height of bars and lines */
    BOTTOM = 44,
    NUMBER_WIDTH = 30 /* cells at least so wide show their number */
};

/* ---- heat maps ---- */

/* The colour of a value: *class, and the returned level (0: blank). */
static int shade(const struct heat *p, double v, const char **class)
{
    double x;

    *class = "hot";
    if (p->around_one) {
        if (v <= 0) {
            *class = "none";
            return LEVELS;
        }
        x = log2(v) / 3;
        *class = x < 0 ? "cold" : "hot";
        x = fabs(x);
    } else {
        x = p->high > p->low ? (v - p->low) / (p->high - p->low) : 0.5;
        x = 0.06 + 0.94 * (x < 0 ? 0 : x);
    }
    return (int)lround((x > 1 ? 1 : x) * LEVELS);
}

static double opacity(int level)
{
    return (double)level / LEVELS;
}

struct grid {
    double width, height; /* of a cell */
    double right, bottom;
};

static struct grid heat_grid(const struct heat *p)
{
    struct grid g = { .width = (double)(CHART_WIDTH - LEFT) / (double)p->cols };

    g.width = g.width > 110 ? 110 : g.width;
    g.height = p->rows <= 12 ? 26 : p->rows <= 32 ? 18 : 12;
    g.right = LEFT + g.width * (double)p->cols;
    g.bottom = 20 + g.height * (double)p->rows;
    return g;
}

static void heat_cell(struct html *h, const struct heat *p,
                      const struct grid *g, size_t row, size_t col)
{
    char r[LABEL_MAX], c[LABEL_MAX];
    double v = p->value(p->arg, row, col), x, y;
    const char *class;
    int level;

    if (isnan(v))
        return;
    level = shade(p, v, &class);
    x = LEFT + g->width * (double)col;
    y = 20 + g->height * (double)row;
    p->row_label(p->arg, row, r);
    p->col_label(p->arg, col, c);
    html_put(h,
             "<rect class=\"cell %s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" "
             "height=\"%.2f\" fill-opacity=\"%.4g\"><title>%s, %s %s: %s "
             "%.3g</title></rect>\n",
             class, x, y, g->width - (g->width > 8 ? 1.5 : 0),
             g->height - (g->height > 12 ? 1.5 : 0), opacity(level), r,
             p->col_name, c, p->unit, v);
    if (g->width >= NUMBER_WIDTH && g->height >= 16)
        html_put(h, "<text class=\"num%s\" x=\"%.2f\" y=\"%.2f\">%.2f</text>\n",
                 level > 9 ? " on" : "", x + g->width / 2 - 0.75,
                 y + g->height / 2 + 3.3, v);
}

/* For thousands of cells: one SVG path for all cells of a colour. */
static void heat_level(struct html *h, const struct heat *p,
                       const struct grid *g, const char *class, int level)
{
    const char *c;
    bool open = false;

    for (size_t row = 0; row < p->rows; row++)
        for (size_t col = 0; col < p->cols; col++) {
            double v = p->value(p->arg, row, col);

            if (isnan(v) || shade(p, v, &c) != level || strcmp(c, class) != 0)
                continue;
            if (!open)
                html_put(h,
                         "<path class=\"cell %s\" fill-opacity=\"%.4g\" d=\"",
                         class, opacity(level));
            open = true;
            html_put(
                h, "M%.2f %.0fh%.2fv%.0fh-%.2fz", LEFT + g->width * (double)col,
                20 + g->height * (double)row, g->width, g->height, g->width);
        }
    if (open)
        html_put(h, "\"/>\n");
}

static void heat_labels(struct html *h, const struct heat *p,
                        const struct grid *g)
{
    size_t every = 1 + (size_t)(26 / g->width);
    size_t skip = g->height < 12 ? 2 : 1;
    char label[LABEL_MAX];

    html_put(h, "<text class=\"end\" x=\"%d\" y=\"12\">%s</text>\n", LEFT - 8,
             p->col_name);
    for (size_t i = 0; i < p->cols; i += every) {
        p->col_label(p->arg, i, label);
        html_put(h, "<text class=\"mid\" x=\"%.2f\" y=\"12\">%s</text>\n",
                 LEFT + g->width * ((double)i + 0.5) - 0.75, label);
    }
    for (size_t i = 0; i < p->rows; i += skip) {
        p->row_label(p->arg, i, label);
        html_put(h, "<text class=\"end\" x=\"%d\" y=\"%.2f\">%s</text>\n",
                 LEFT - 8, 20 + g->height * ((double)i + 0.5) + 3.3, label);
    }
}

static void heat_legend(struct html *h, const struct heat *p,
                        const struct grid *g)
{
    static const char *const words[] = { "1/8", "mean", "8 times" };
    double y = g->bottom + 12;

    for (int i = -8; i <= 8; i++) {
        bool used = p->around_one || i >= 0;

        if (used)
            html_put(h,
                     "<rect class=\"%s\" x=\"%d\" y=\"%.1f\" width=\"14\" "
                     "height=\"10\" fill-opacity=\"%.4g\"/>\n",
                     i < 0 ? "cold" : "hot",
                     LEFT + (i + (p->around_one ? 8 : 0)) * 14, y,
                     p->around_one ? fabs((double)i / 8) :
                                     0.06 + 0.94 * (double)i / 8);
    }
    if (p->around_one) {
        for (int i = 0; i < 3; i++)
            html_put(h, "<text class=\"mid\" x=\"%d\" y=\"%.1f\">%s</text>\n",
                     LEFT + 7 + i * 8 * 14, y + 24, words[i]);
        html_put(h,
                 "<rect class=\"none\" x=\"%d\" y=\"%.1f\" width=\"14\" "
                 "height=\"10\"/><text x=\"%d\" y=\"%.1f\">no token</text>\n",
                 LEFT + 290, y, LEFT + 310, y + 9);
        return;
    }
    html_put(h,
             "<text class=\"mid\" x=\"%d\" y=\"%.1f\">%.2f</text>"
             "<text class=\"mid\" x=\"%d\" y=\"%.1f\">%.2f</text>\n",
             LEFT + 7, y + 24, p->low, LEFT + 119, y + 24, p->high);
}

void chart_heat(struct html *h, const struct heat *p)
{
    static const char *const classes[] = { "hot", "cold", "none" };
    struct grid g = heat_grid(p);

    html_put(h,
             "<svg class=\"heat\" viewBox=\"0 0 %d %.0f\" role=\"img\" "
             "aria-label=\"%s\">\n",
             CHART_WIDTH, g.bottom + 42, p->unit);
    heat_labels(h, p, &g);
    if (p->rows * p->cols <= MARKS) {
        for (size_t i = 0; i < p->rows; i++)
            for (size_t k = 0; k < p->cols; k++)
                heat_cell(h, p, &g, i, k);
    } else {
        for (size_t i = 0; i < ARRAY_LEN(classes); i++)
            for (int level = 1; level <= LEVELS; level++)
                heat_level(h, p, &g, classes[i], level);
    }
    html_put(h,
             "<rect class=\"frame\" x=\"%d\" y=\"20\" width=\"%.2f\" "
             "height=\"%.2f\"/>\n",
             LEFT, g.right - LEFT, g.bottom - 20);
    heat_legend(h, p, &g);
    html_put(h, "</svg>\n");
}

/* ---- axes ---- */

struct axis {
    double low, high, step;
};

/* An axis of four to eight round steps that covers low..high. */
static struct axis round_axis(double low, double high)
{
    static const double nice[] = { 1, 2, 2.5, 5, 10 };
    double span, p, step = 0;

    high = high > low ? high : low + 1;
    span = high - low;
    p = pow(10, floor(log10(span / 5)));
    for (size_t i = 0; i < ARRAY_LEN(nice); i++) {
        step = nice[i] * p;
        if (span / step <= 6)
            break;
    }
    return (struct axis){ floor(low / step + 1e-9) * step,
                          ceil(high / step - 1e-9) * step, step };
}

static double y_of(const struct axis *a, double v)
{
    return TOP + PLOT * (1 - (v - a->low) / (a->high - a->low));
}

static void draw_axis(struct html *h, const struct axis *a,
                      void (*text)(double, char[LABEL_MAX]))
{
    char label[LABEL_MAX];

    for (double v = a->low; v <= a->high + a->step / 2; v += a->step) {
        text(fabs(v) < a->step * 1e-6 ? 0 : v, label);
        html_put(h,
                 "<path class=\"rule\" d=\"M%d %.1fH%d\"/><text class=\"end\" "
                 "x=\"%d\" y=\"%.1f\">%s</text>\n",
                 AXIS, y_of(a, v), CHART_WIDTH, AXIS - 8, y_of(a, v) + 3.5,
                 label);
    }
}

static void open_plot(struct html *h, const char *class, const char *label)
{
    html_put(h,
             "<svg class=\"%s\" viewBox=\"0 0 %d %d\" role=\"img\" "
             "aria-label=\"%s\">\n",
             class, CHART_WIDTH, TOP + PLOT + BOTTOM, label);
}

static void x_labels(struct html *h, size_t n, double step, const char *name,
                     void (*label_of)(const void *, size_t, char[LABEL_MAX]),
                     const void *arg)
{
    size_t every = 1 + (size_t)(30 / step);
    char label[LABEL_MAX];

    for (size_t i = 0; i < n; i += every) {
        label_of(arg, i, label);
        html_put(h, "<text class=\"mid\" x=\"%.2f\" y=\"%d\">%s</text>\n",
                 AXIS + step * ((double)i + 0.5), TOP + PLOT + 16, label);
    }
    html_put(h, "<text class=\"end\" x=\"%d\" y=\"%d\">%s</text>\n",
             CHART_WIDTH, TOP + PLOT + 34, name);
}

/* ---- bars ---- */

static double highest_bar(const struct bars *p)
{
    double high = 0;

    for (size_t i = 0; i < p->groups; i++) {
        double sum = 0;

        for (size_t k = 0; k < p->series; k++) {
            double v = p->value(p->arg, i, k);

            v = isfinite(v) && v > 0 ? v : 0;
            sum = p->stacked ? sum + v : v > sum ? v : sum;
        }
        high = sum > high ? sum : high;
    }
    return high;
}

static void bar_group(struct html *h, const struct bars *p,
                      const struct axis *a, size_t i, double step)
{
    double gap = step > 100 ? step * 0.4 : step > 12 ? step * 0.2 : step * 0.1;
    double width = step - gap, base = 0;
    double each = p->stacked ? width : width / (double)p->series;
    char group[LABEL_MAX], text[LABEL_MAX];

    p->group_label(p->arg, i, group);
    for (size_t k = 0; k < p->series; k++) {
        double v = p->value(p->arg, i, k);
        double x = AXIS + step * (double)i + gap / 2 +
                   (p->stacked ? 0 : each * (double)k);

        if (!isfinite(v) || v <= 0)
            continue;
        p->text(v, text);
        html_put(h,
                 "<rect class=\"bar %s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" "
                 "height=\"%.2f\"><title>%s %s, %s: %s</title></rect>\n",
                 p->series_class[k], x, y_of(a, base + v),
                 each - (each > 6 ? 1 : 0), y_of(a, base) - y_of(a, base + v),
                 p->group_name, group, p->series_name[k], text);
        base += p->stacked ? v : 0;
    }
}

void chart_bars(struct html *h, const struct bars *p)
{
    double step = (double)(CHART_WIDTH - AXIS) / (double)p->groups;
    struct axis a = round_axis(0, highest_bar(p));

    html_put(h, "<p class=\"legend\">");
    for (size_t k = 0; k < p->series; k++)
        html_put(h, "<span><i class=\"%s\"></i>%s</span>", p->series_class[k],
                 p->series_name[k]);
    html_put(h, "</p>\n");
    open_plot(h, "bars", p->series_name[0]);
    draw_axis(h, &a, p->text);
    for (size_t i = 0; i < p->groups; i++)
        bar_group(h, p, &a, i, step);
    x_labels(h, p->groups, step, p->group_name, p->group_label, p->arg);
    html_put(h, "</svg>\n");
}

/* ---- lines ---- */

static struct axis line_axis(const struct line *p)
{
    double low = INFINITY, high = -INFINITY;

    for (size_t i = 0; i < p->n; i++) {
        double v = p->value(p->arg, i), s = 0;

        if (p->spread)
            s = p->spread(p->arg, i);
        s = isfinite(s) ? s : 0;
        low = v - s < low ? v - s : low;
        high = v + s > high ? v + s : high;
    }
    return p->percent ? round_axis(low < 0.99 ? low : 0.99, 1) :
                        round_axis(0, high);
}

static double x_of(const struct line *p, size_t i)
{
    double step = (double)(CHART_WIDTH - AXIS) / (double)p->n;

    return AXIS + step * ((double)i + 0.5);
}

static void line_band(struct html *h, const struct line *p,
                      const struct axis *a)
{
    html_put(h, "<path class=\"band %s\" d=\"", p->class);
    for (size_t i = 0; i < p->n; i++)
        html_put(h, "%c%.2f %.2f", i ? 'L' : 'M', x_of(p, i),
                 y_of(a, p->value(p->arg, i) + p->spread(p->arg, i)));
    for (size_t i = p->n; i-- > 0;)
        html_put(h, "L%.2f %.2f", x_of(p, i),
                 y_of(a, p->value(p->arg, i) - p->spread(p->arg, i)));
    html_put(h, "z\"/>\n");
}

void chart_line(struct html *h, const struct line *p)
{
    struct axis a = line_axis(p);
    char label[LABEL_MAX], text[LABEL_MAX];

    open_plot(h, "line", p->y_name);
    draw_axis(h, &a, p->text);
    if (p->spread)
        line_band(h, p, &a);
    html_put(h, "<path class=\"curve %s\" d=\"", p->class);
    for (size_t i = 0; i < p->n; i++)
        html_put(h, "%c%.2f %.2f", i ? 'L' : 'M', x_of(p, i),
                 y_of(&a, p->value(p->arg, i)));
    html_put(h, "\"/>\n");
    for (size_t i = 0; i < p->n; i++) {
        p->x_label(p->arg, i, label);
        p->text(p->value(p->arg, i), text);
        html_put(h,
                 "<circle class=\"dot %s\" cx=\"%.2f\" cy=\"%.2f\" r=\"%s\">"
                 "<title>%s %s: %s %s</title></circle>\n",
                 p->class, x_of(p, i), y_of(&a, p->value(p->arg, i)),
                 p->n > 80 ? "2" : "3.5", p->x_name, label, p->y_name, text);
    }
    x_labels(h, p->n, (double)(CHART_WIDTH - AXIS) / (double)p->n, p->x_name,
             p->x_label, p->arg);
    html_put(h, "</svg>\n");
}
