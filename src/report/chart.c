/* chart.c - see chart.h. */
#include "report/chart.h"

#include <math.h>
#include <stdio.h>

enum {
    X_LABELS = 12, /* at most, so that they do not touch at 500 px */
    DOTS = 130     /* longer lines have no dots */
};

/* ---- the frame ---- */

static void legend_item(struct html *h, const char *class, const char *name)
{
    html_put(h, "<span><i class=\"%s\"></i>%s</span>", class, name);
}

/* A value of x as text. */
static void x_text(const struct lines *p, double x, char label[LABEL_MAX])
{
    p->x_text(p->step ? p->step[(size_t)x] : x, label);
}

/* The name of the y axis, its ticks, and the field, which stays open. */
static void frame_open(struct html *h, const struct axis *y, label_text *text,
                       const char *y_name)
{
    char label[LABEL_MAX];
    double v;

    html_put(h,
             "<p class=\"yname\">%s</p>\n<div class=\"plot\">"
             "<div class=\"yaxis\">",
             y_name);
    for (size_t i = 0; axis_tick(y, i, &v); i++) {
        text(v, label);
        html_put(h, "<span style=\"bottom:%.2f%%\">%s</span>", axis_at(y, v),
                 label);
    }
    html_put(h, "</div><div class=\"field\">\n");
    for (size_t i = 0; axis_tick(y, i, &v); i++)
        html_put(h, "<u style=\"bottom:%.2f%%\"></u>", axis_at(y, v));
    html_put(h, "\n");
}

static void x_label(struct html *h, double at, const char *label)
{
    html_put(h, "<span style=\"left:%.2f%%\">%s</span>", at, label);
}

/* Labels first, first + 1, ... in the middle of n equal steps; of lines (NULL:
 * bars) what they write for these. */
static void step_labels(struct html *h, size_t n, double first,
                        const struct lines *p)
{
    size_t every = (n + X_LABELS - 1) / X_LABELS;
    char label[LABEL_MAX];

    for (size_t i = 0; i < n; i += every) {
        if (p)
            x_text(p, first + (double)i, label);
        else
            text_whole((double)i, label);
        x_label(h, 100 * ((double)i + 0.5) / (double)n, label);
    }
}

static void frame_close(struct html *h, const char *x_name)
{
    html_put(h, "</div>\n<p class=\"xname\">%s</p></figure>\n", x_name);
}

/* ---- bars ---- */

static double bar_value(const struct bars *p, size_t i, size_t k)
{
    double v = p->value(p->arg, i, k);

    return isfinite(v) && v > 0 ? v : 0;
}

static double highest_bar(const struct bars *p)
{
    double high = 0;

    for (size_t i = 0; i < p->groups; i++) {
        double sum = 0;

        for (size_t k = 0; k < p->series; k++) {
            double v = bar_value(p, i, k);

            sum = p->stacked ? sum + v : v > sum ? v : sum;
        }
        high = sum > high ? sum : high;
    }
    return high;
}

static void bar_group(struct html *h, const struct bars *p,
                      const struct axis *y, size_t i)
{
    double step = 100 / (double)p->groups, base = 0;
    double width = step * (p->groups < 9 ? 0.6 : 0.8);
    double each = p->stacked ? width : width / (double)p->series;
    char text[LABEL_MAX];

    for (size_t k = 0; k < p->series; k++) {
        double v = bar_value(p, i, k);
        double x = step * (double)i + (step - width) / 2 +
                   (p->stacked ? 0 : each * (double)k);

        if (v == 0)
            continue;
        p->text(v, text);
        html_put(h,
                 "<i class=\"bar %s\" style=\"left:%.3f%%;width:%.3f%%;"
                 "bottom:%.3f%%;height:%.3f%%\" title=\"%s %zu, %s: %s\"></i>"
                 "\n",
                 p->series_class[k], x, each, axis_at(y, base), axis_at(y, v),
                 p->x_name, i, p->series_name[k], text);
        base += p->stacked ? v : 0;
    }
}

void chart_bars(struct html *h, const struct bars *p)
{
    struct axis y = axis_round(0, highest_bar(p));

    html_put(h, "<figure class=\"bars\"><p class=\"legend\">");
    for (size_t k = 0; k < p->series; k++)
        legend_item(h, p->series_class[k], p->series_name[k]);
    html_put(h, "</p>\n");
    frame_open(h, &y, p->text, p->y_name);
    for (size_t i = 0; i < p->groups; i++)
        bar_group(h, p, &y, i);
    html_put(h, "</div></div>\n<div class=\"xaxis\">");
    step_labels(h, p->groups, 0, NULL);
    frame_close(h, p->x_name);
}

/* ---- lines ---- */

static double spread(const struct series *s, size_t i)
{
    return s->spread && isfinite(s->spread[i]) ? s->spread[i] : 0;
}

/* The ranges of all lines: x[0]..x[1], y[0]..y[1]. */
static void ranges(const struct lines *p, double x[2], double y[2])
{
    x[0] = y[0] = INFINITY;
    x[1] = y[1] = -INFINITY;
    for (size_t k = 0; k < p->count; k++)
        for (size_t i = 0; i < p->series[k].n; i++) {
            const struct series *s = &p->series[k];

            x[0] = fmin(x[0], s->x[i]);
            x[1] = fmax(x[1], s->x[i]);
            y[0] = fmin(y[0], s->y[i] - spread(s, i));
            y[1] = fmax(y[1], s->y[i] + spread(s, i));
        }
}

/* What of the chart a line is drawn in. */
struct field {
    const struct lines *p;
    struct axis x, y;
};

static struct field field_of(const struct lines *p)
{
    struct field f = { .p = p };
    double x[2], y[2];

    ranges(p, x, y);
    f.x = p->whole ? (struct axis){ x[0] - 0.5, x[1] + 0.5, 1, false } :
          p->x_log ? axis_log(x[0], x[1]) :
                     axis_round(x[0], x[1]);
    f.y = p->y_log ? axis_log_fine(y[0], y[1]) :
          p->top   ? axis_round(y[0] < 0.99 ? y[0] : 0.99, 1) :
                     axis_round(0, y[1]);
    return f;
}

/* In units of the SVG, whose height and width are 1000. */
static void point(struct html *h, const struct field *f, char how, double x,
                  double y)
{
    html_put(h, "%c%.1f %.1f", how, 10 * axis_at(&f->x, x),
             1000 - 10 * axis_at(&f->y, y));
}

static void draw_band(struct html *h, const struct field *f,
                      const struct series *s)
{
    html_put(h, "<path class=\"band %s\" d=\"", s->class);
    for (size_t i = 0; i < s->n; i++)
        point(h, f, i ? 'L' : 'M', s->x[i], s->y[i] + spread(s, i));
    for (size_t i = s->n; i-- > 0;)
        point(h, f, 'L', s->x[i], s->y[i] - spread(s, i));
    html_put(h, "z\"/>\n");
}

/* A step from each x to the next is as high as the y of its end. */
static void put_steps(struct html *h, const struct field *f,
                      const struct series *s)
{
    point(h, f, 'M', s->x[0], 0);
    for (size_t i = 1; i < s->n; i++) {
        point(h, f, 'L', s->x[i - 1], s->y[i]);
        point(h, f, 'L', s->x[i], s->y[i]);
    }
    point(h, f, 'L', s->x[s->n - 1], 0);
}

static void draw_line(struct html *h, const struct field *f,
                      const struct series *s)
{
    if (s->spread)
        draw_band(h, f, s);
    if (f->p->area && s == f->p->series) {
        html_put(h, "<path class=\"band %s\" d=\"", s->class);
        put_steps(h, f, s);
        html_put(h, "z\"/>\n");
    }
    html_put(h, "<path class=\"curve %s\" d=\"", s->class);
    if (f->p->area)
        put_steps(h, f, s);
    for (size_t i = 0; !f->p->area && i < s->n; i++)
        point(h, f, i ? 'L' : 'M', s->x[i], s->y[i]);
    html_put(h, "\"/>\n");
}

static void draw_dots(struct html *h, const struct field *f,
                      const struct series *s)
{
    char x[LABEL_MAX], y[LABEL_MAX];

    for (size_t i = 0; i < s->n && s->n <= DOTS; i++) {
        x_text(f->p, s->x[i], x);
        f->p->y_text(s->y[i], y);
        html_put(h,
                 "<i class=\"dot %s\" style=\"left:%.2f%%;bottom:%.2f%%\" "
                 "title=\"%s, %s %s: %s\"></i>\n",
                 s->class, axis_at(&f->x, s->x[i]), axis_at(&f->y, s->y[i]),
                 s->name, f->p->x_name, x, y);
    }
}

static void line_labels(struct html *h, const struct field *f)
{
    char label[LABEL_MAX];
    double v;

    if (f->p->whole) {
        step_labels(h, (size_t)(f->x.high - f->x.low), f->x.low + 0.5, f->p);
        return;
    }
    for (size_t i = 0; axis_tick(&f->x, i, &v); i++) {
        f->p->x_text(v, label);
        x_label(h, axis_at(&f->x, v), label);
    }
}

void chart_lines(struct html *h, const struct lines *p)
{
    struct field f = field_of(p);

    html_put(h, "<figure class=\"lines\">");
    if (p->count > 1) {
        html_put(h, "<p class=\"legend\">");
        for (size_t k = 0; k < p->count; k++)
            legend_item(h, p->series[k].class, p->series[k].name);
        html_put(h, "</p>\n");
    }
    frame_open(h, &f.y, p->y_text, p->y_name);
    html_put(h, "<svg viewBox=\"0 0 1000 1000\" "
                "preserveAspectRatio=\"none\">\n");
    for (size_t k = p->count; k-- > 0;)
        draw_line(h, &f, &p->series[k]);
    html_put(h, "</svg>\n");
    for (size_t k = p->count; !p->area && k-- > 0;)
        draw_dots(h, &f, &p->series[k]);
    html_put(h, "</div></div>\n<div class=\"xaxis\">");
    line_labels(h, &f);
    frame_close(h, p->x_name);
}

/* ---- labels ---- */

void text_whole(double v, char label[LABEL_MAX])
{
    snprintf(label, LABEL_MAX, "%.0f", v);
}

void text_plain(double v, char label[LABEL_MAX])
{
    snprintf(label, LABEL_MAX, v >= 1e4 && v < 1e7 ? "%.0f" : "%.4g", v);
}

void text_ratio(double v, char label[LABEL_MAX])
{
    snprintf(label, LABEL_MAX, "%.3f", v);
}

void text_bits(double v, char label[LABEL_MAX])
{
    snprintf(label, LABEL_MAX, "%.2f", v);
}

void text_percent(double v, char label[LABEL_MAX])
{
    snprintf(label, LABEL_MAX, "%.4g %%", 100 * v);
}
