/* heat.c - see heat.h. */
#include "report/heat.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TABLE_COLS = 32, /* at most as a table */
    BLOCK_ROWS = 16, /* of a table; more rows are tables side by side */
    MARKS = 4096,    /* beyond so many cells they have no titles */
    ROW_HEIGHT = 12, /* pixels, of the SVG */
    LABELLED = 8,    /* columns of the SVG that have labels */
    SHORT_LABEL = 3, /* longer labels of columns are upright */
    NONE = -2,
    BLANK = -1
};

/* What a cell's colour means: low..high, or with around_one 1 / high..high. */
struct scale {
    double low, high;
};

/* high = the factor that 99 of 100 values stay within, rounded up. */
static void scale_ratios(struct scale *s, const double *sorted, size_t n)
{
    static const double nice[] = { 1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 16, 32 };
    double far = n ? sorted[(size_t)(0.99 * (double)(n - 1))] : 0;

    s->high = 64;
    for (size_t i = ARRAY_LEN(nice); i-- > 0;)
        if (log(nice[i]) >= far - 1e-9)
            s->high = nice[i];
    s->low = 1 / s->high;
}

static int scale_of(struct scale *s, const struct heat *p, struct err *e)
{
    size_t n = 0;
    double *v = mem_zero(p->rows * p->cols + 1, sizeof(*v), "report", e);

    if (!v)
        return e->code;
    for (size_t i = 0; i < p->rows; i++)
        for (size_t k = 0; k < p->cols; k++) {
            double x = p->value(p->arg, i, k);

            if (isfinite(x) && (!p->around_one || x > 0))
                v[n++] = p->around_one ? fabs(log(x)) : x;
        }
    sort_doubles(v, n);
    if (p->around_one)
        scale_ratios(s, v, n);
    else if (n)
        *s = (struct scale){ v[0], v[n - 1] };
    free(v);
    return 0;
}

/* The shade of a value, 0..HEAT_SHADES - 1, BLANK or NONE; *class: 'h' or
 * 'k'. */
static int shade(const struct heat *p, const struct scale *s, double v,
                 char *class)
{
    int level;
    double x;

    *class = 'h';
    if (isnan(v))
        return BLANK;
    if (!p->around_one) {
        x = s->high > s->low ? (v - s->low) / (s->high - s->low) : 0.5;
    } else if (v <= 0) {
        return NONE;
    } else {
        x = log(v) / log(s->high);
    }
    level = (int)lround(fmin(fabs(x), 1) * (HEAT_SHADES - 1));
    *class = x < 0 && level ? 'k' : 'h';
    return level;
}

static void put_class(struct html *h, char class, int level)
{
    if (level == NONE)
        html_put(h, "none");
    else
        html_put(h, "%c%d", class, level);
}

/* ---- tables ---- */

static void digits(struct html *h, const struct heat *p, double v)
{
    html_put(h,
             v == 0 || v >= 9.95 ? "%.0f" :
             p->around_one       ? "%.1f" :
                                   "%.2f",
             v);
}

static void cell(struct html *h, const struct heat *p, const struct scale *s,
                 size_t row, size_t col)
{
    char r[LABEL_MAX], c[LABEL_MAX], class;
    double v = p->value(p->arg, row, col);
    int level = shade(p, s, v, &class);

    if (level == BLANK) {
        html_put(h, "<td></td>");
        return;
    }
    p->row_label(p->arg, row, r);
    p->col_label(p->arg, col, c);
    html_put(h, "<td class=\"cell ");
    put_class(h, class, level);
    html_put(h, "\" title=\"%s %s, %s %s: %.3g %s\">", p->row_name, r,
             p->col_name, c, v, p->unit);
    digits(h, p, v);
    html_put(h, "</td>");
}

static void head(struct html *h, const struct heat *p)
{
    char label[LABEL_MAX];
    bool upright = false;

    for (size_t i = 0; i < p->cols; i++) {
        p->col_label(p->arg, i, label);
        upright |= strlen(label) > SHORT_LABEL;
    }
    html_put(h, "<tr><th class=\"corner\">%s</th>", p->row_name);
    for (size_t i = 0; i < p->cols; i++) {
        p->col_label(p->arg, i, label);
        html_put(h,
                 upright ? "<th class=\"up\"><span>%s</span></th>" :
                           "<th>%s</th>",
                 label);
    }
    html_put(h, "</tr>\n");
}

static void block(struct html *h, const struct heat *p, const struct scale *s,
                  size_t begin, size_t end)
{
    char label[LABEL_MAX];

    html_put(h,
             "<table class=\"map\" style=\"flex:%d 1 %zupx;min-width:%zupx;"
             "max-width:%zupx\">\n",
             end - begin == p->rows, 44 + 34 * p->cols,
             p->cols > HEAT_DIGITS ? 44 + 28 * p->cols : 0, 60 + 84 * p->cols);
    head(h, p);
    for (size_t i = begin; i < end; i++) {
        p->row_label(p->arg, i, label);
        html_put(h, "<tr><th>%s</th>", label);
        for (size_t k = 0; k < p->cols; k++)
            cell(h, p, s, i, k);
        html_put(h, "</tr>\n");
    }
    html_put(h, "</table>\n");
}

static void tables(struct html *h, const struct heat *p, const struct scale *s)
{
    size_t blocks = (p->rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    size_t each = blocks ? (p->rows + blocks - 1) / blocks : 0;

    html_put(h, "<div class=\"maps\">\n");
    for (size_t i = 0; i < p->rows; i += each)
        block(h, p, s, i, i + each < p->rows ? i + each : p->rows);
    html_put(h, "</div>\n<p class=\"xname\">%s</p>\n", p->col_name);
}

/* ---- SVG ---- */

static void svg_cell(struct html *h, const struct heat *p,
                     const struct scale *s, size_t row, size_t col)
{
    char r[LABEL_MAX], c[LABEL_MAX], class;
    double v = p->value(p->arg, row, col);
    int level = shade(p, s, v, &class);

    if (level == BLANK)
        return;
    p->row_label(p->arg, row, r);
    p->col_label(p->arg, col, c);
    html_put(h, "<rect class=\"cell ");
    put_class(h, class, level);
    html_put(h,
             "\" x=\"%zu\" y=\"%zu\" width=\"1\" height=\"1\"><title>%s %s, %s "
             "%s: %.3g %s</title></rect>\n",
             col, row, p->row_name, r, p->col_name, c, v, p->unit);
}

/* For thousands of cells: one path for all cells of a colour. */
static void svg_shade(struct html *h, const struct heat *p,
                      const struct scale *s, char class, int level)
{
    bool open = false;
    char c;

    for (size_t row = 0; row < p->rows; row++)
        for (size_t col = 0; col < p->cols; col++) {
            if (shade(p, s, p->value(p->arg, row, col), &c) != level ||
                c != class)
                continue;
            if (!open) {
                html_put(h, "<path class=\"cell ");
                put_class(h, class, level);
                html_put(h, "\" d=\"");
            }
            open = true;
            html_put(h, "M%zu %zuh1v1h-1z", col, row);
        }
    if (open)
        html_put(h, "\"/>\n");
}

static void svg_marks(struct html *h, const struct heat *p,
                      const struct scale *s)
{
    if (p->rows * p->cols > MARKS) {
        for (int level = NONE; level < HEAT_SHADES; level++) {
            if (level == BLANK)
                continue;
            svg_shade(h, p, s, 'h', level);
            svg_shade(h, p, s, 'k', level);
        }
        return;
    }
    for (size_t i = 0; i < p->rows; i++)
        for (size_t k = 0; k < p->cols; k++)
            svg_cell(h, p, s, i, k);
}

static void svg_labels(struct html *h, const struct heat *p)
{
    size_t every = (p->cols + LABELLED - 1) / LABELLED;
    char label[LABEL_MAX];

    html_put(h, "<div class=\"xaxis\">");
    for (size_t i = 0; i < p->cols; i += every) {
        p->col_label(p->arg, i, label);
        html_put(h, "<span style=\"left:%.2f%%\">%s</span>",
                 100 * ((double)i + 0.5) / (double)p->cols, label);
    }
    html_put(h, "</div>\n<p class=\"xname\">%s</p>\n", p->col_name);
}

static void picture(struct html *h, const struct heat *p, const struct scale *s)
{
    size_t every = p->rows > 4 ? 2 : 1;
    char label[LABEL_MAX];

    html_put(h,
             "<p class=\"yname\">%s</p>\n<div class=\"plot picture\" "
             "style=\"height:%zupx\"><div class=\"yaxis\">",
             p->row_name, ROW_HEIGHT * p->rows);
    for (size_t i = 0; i < p->rows; i += every) {
        p->row_label(p->arg, i, label);
        html_put(h, "<span style=\"top:%.2f%%\">%s</span>",
                 100 * ((double)i + 0.5) / (double)p->rows, label);
    }
    html_put(h,
             "</div><div class=\"field\"><svg viewBox=\"0 0 %zu %zu\" "
             "preserveAspectRatio=\"none\" shape-rendering=\"crispEdges\">\n",
             p->cols, p->rows);
    svg_marks(h, p, s);
    html_put(h, "</svg></div></div>\n");
    svg_labels(h, p);
}

/* ---- the scale ---- */

static void swatches(struct html *h, char class, int from, int to)
{
    for (int i = from; i != to; i += from < to ? 1 : -1)
        html_put(h, "<i class=\"%c%d\"></i>", class, i);
}

static void legend(struct html *h, const struct heat *p, const struct scale *s)
{
    html_put(h, "<p class=\"scale\">");
    if (p->around_one) {
        html_put(h, "<span>1/%.3g</span>", s->high);
        swatches(h, 'k', HEAT_SHADES - 1, 0);
        html_put(h, "<span>1</span>");
        swatches(h, 'h', 1, HEAT_SHADES);
        html_put(h,
                 "<span>%.3g</span> <span>%s</span> <i class=\"none\"></i>"
                 "<span>none</span>",
                 s->high, p->unit);
    } else {
        html_put(h, "<span>%.2f</span>", s->low);
        swatches(h, 'h', 0, HEAT_SHADES);
        html_put(h, "<span>%.2f</span> <span>%s</span>", s->high, p->unit);
    }
    html_put(h, "</p>\n");
}

int chart_heat(struct html *h, const struct heat *p, struct err *e)
{
    struct scale s = { 0, 1 };

    if (scale_of(&s, p, e) < 0)
        return e->code;
    html_put(h, "<figure class=\"heat\">\n");
    legend(h, p, &s);
    if (p->cols <= TABLE_COLS)
        tables(h, p, &s);
    else
        picture(h, p, &s);
    html_put(h, "</figure>\n");
    return 0;
}
