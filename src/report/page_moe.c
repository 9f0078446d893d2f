/* page_moe.c - the section about experts: hit maps, experts with few or no
 * tokens, and how well different statistics agree in ranking experts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "report/heat.h"
#include "report/section.h"

enum { FEW = 128, NAMES_MAX = 40, ROWS_OPEN = 16 };

static const char *const hit_names[HITS] = { "tokens",       "scores",
                                             "weights",      "squares",
                                             "g\xc2\xb7|f|", "mass" };

struct view {
    const struct hitmaps *maps;
    size_t experts; /* the largest number of a layer */
    enum hit column;
};

static struct view view_of(const struct hitmaps *maps, enum hit column)
{
    struct view v = { maps, 0, column };

    for (size_t i = 0; i < maps->count; i++)
        if (maps->map[i].experts > v.experts)
            v.experts = maps->map[i].experts;
    return v;
}

static bool has_column(const struct hitmaps *maps, enum hit column)
{
    for (size_t i = 0; i < maps->count; i++)
        if (maps->map[i].sum[column] > 0)
            return true;
    return false;
}

/* Begin a table with a row per layer; with many layers it is folded
 * (<details>). */
static void fold(struct html *h, const struct hitmaps *maps)
{
    if (maps->count > ROWS_OPEN)
        html_put(h, "<details><summary>%zu layers</summary>\n", maps->count);
}

static void unfold(struct html *h, const struct hitmaps *maps)
{
    html_put(h, maps->count > ROWS_OPEN ? "</table></div></details>\n" :
                                          "</table></div>\n");
}

/* ---- the maps ---- */

/* A value as a multiple of its layer's mean. */
static double share(const void *arg, size_t row, size_t col)
{
    const struct view *v = arg;
    const struct hitmap *m = &v->maps->map[row];
    double sum = m->sum[v->column];

    if (col >= m->experts || !(sum > 0))
        return NAN;
    return hit_value(m, col, v->column) * (double)m->experts / sum;
}

static void layer_label(const void *arg, size_t row, char label[LABEL_MAX])
{
    const struct view *v = arg;

    snprintf(label, LABEL_MAX, "%lld", (long long)v->maps->map[row].layer);
}

static void expert_label(const void *arg, size_t col, char label[LABEL_MAX])
{
    (void)arg;
    snprintf(label, LABEL_MAX, "%zu", col);
}

static int map(struct html *h, const struct hitmaps *maps, enum hit column,
               const char *title, const char *note, struct err *e)
{
    const struct view v = view_of(maps, column);
    const struct heat heat = { .rows = maps->count,
                               .cols = v.experts,
                               .row_name = "layer",
                               .col_name = "expert",
                               .unit = "times the layer's mean",
                               .value = share,
                               .row_label = layer_label,
                               .col_label = expert_label,
                               .arg = &v,
                               .around_one = true };

    html_put(h, "<h3>%s</h3>\n<p class=\"note\">%s</p>\n", title, note);
    return chart_heat(h, &heat, e);
}

/* ---- experts with few tokens ---- */

static void few(struct html *h, const struct hitmaps *maps, double from,
                double below, const char *what)
{
    size_t n = 0, shown = 0;

    for (size_t i = 0; i < maps->count; i++)
        n += hit_count_below(&maps->map[i], below) -
             hit_count_below(&maps->map[i], from);
    if (!n)
        return;
    html_put(h, "<p class=\"alert\">%s (%zu): ", what, n);
    for (size_t i = 0; i < maps->count; i++)
        for (size_t k = 0; k < maps->map[i].experts && shown < NAMES_MAX; k++) {
            double v = hit_value(&maps->map[i], k, HIT_TOKENS);

            if (v >= from && v < below)
                html_put(h, "%s<code>%lld.%zu</code>", shown++ ? ", " : "",
                         (long long)maps->map[i].layer, k);
        }
    if (n > shown)
        html_put(h, " and %zu more", n - shown);
    html_put(h, "; layer.expert.</p>\n");
}

static int balance_row(struct html *h, const struct hitmap *m, struct err *e)
{
    double *v = mem_zero(m->experts, sizeof(*v), "experts", e);
    size_t eighth = (m->experts + 7) / 8;
    double sum = m->sum[HIT_TOKENS], top = 0;

    if (!v)
        return e->code;
    for (size_t i = 0; i < m->experts; i++)
        v[i] = hit_value(m, i, HIT_TOKENS);
    sort_doubles(v, m->experts);
    for (size_t i = m->experts - eighth; i < m->experts; i++)
        top += v[i];
    html_put(h,
             "<tr><td class=\"n\">%lld</td><td class=\"n\">%zu</td>"
             "<td class=\"n\">%zu</td><td class=\"n\">%zu</td>"
             "<td class=\"n\">%.0f</td><td class=\"n\">%.0f</td>"
             "<td class=\"n\">%.0f</td><td class=\"n\">%.1f %%</td></tr>\n",
             (long long)m->layer, m->experts, hit_count_below(m, 0.5),
             hit_count_below(m, FEW), v[0], v[m->experts / 2],
             v[m->experts - 1], sum > 0 ? 100 * top / sum : 0);
    free(v);
    return 0;
}

static int balance(struct html *h, const struct hitmaps *maps, struct err *e)
{
    html_put(h, "<h3>Balance</h3>\n");
    fold(h, maps);
    html_put(h,
             "<div class=\"wide\"><table><tr><th class=\"n\">layer</th>"
             "<th class=\"n\">experts</th><th class=\"n\">without tokens</th>"
             "<th class=\"n\">under %d</th><th class=\"n\">fewest</th>"
             "<th class=\"n\">median</th><th class=\"n\">most</th>"
             "<th class=\"n\">tokens of the busiest eighth</th></tr>\n",
             FEW);
    for (size_t i = 0; i < maps->count; i++)
        if (balance_row(h, &maps->map[i], e) < 0)
            return e->code;
    unfold(h, maps);
    return 0;
}

/* ---- agreement ---- */

static int cell(struct html *h, const struct hitmap *a, enum hit x,
                const struct hitmap *b, enum hit y, struct err *e)
{
    double r = NAN;

    if (a && b && a->experts == b->experts &&
        hit_rank_correlation(a, x, b, y, &r, e) < 0)
        return e->code;
    page_number_cell(h, "", text_ratio, r);
    return 0;
}

static void agreement_head(struct html *h, const struct hitmaps *maps,
                           const char *title, const char *note, int first)
{
    html_put(h, "<h3>%s</h3>\n<p class=\"note\">%s</p>\n", title, note);
    fold(h, maps);
    html_put(h, "<div class=\"wide\"><table><tr><th class=\"n\">layer</th>");
    for (int i = first; i < HITS; i++)
        html_put(h, "<th class=\"n\">%s</th>", hit_names[i]);
    html_put(h, "</tr>\n");
}

/* A table of rank correlations: between the statistics of one pass (other
 * NULL), or of each with the same one of another pass. */
static int agreement(struct html *h, const struct hitmaps *maps,
                     const struct hitmaps *other, struct err *e)
{
    for (size_t i = 0; i < maps->count; i++) {
        const struct hitmap *m = &maps->map[i];
        const struct hitmap *with = other ? hitmaps_find(other, m->layer) : m;

        html_put(h, "<tr><td class=\"n\">%lld</td>", (long long)m->layer);
        for (int k = other ? 0 : 1; k < HITS; k++)
            if (cell(h, m, (enum hit)k, with, other ? (enum hit)k : HIT_TOKENS,
                     e) < 0)
                return e->code;
        html_put(h, "</tr>\n");
    }
    unfold(h, maps);
    return 0;
}

static int agreements(struct html *h, const struct hitmaps *maps,
                      const struct hitmaps *cheap, struct err *e)
{
    if (has_column(maps, HIT_WEIGHTS)) {
        agreement_head(h, maps, "Do the rankings agree?",
                       "Spearman's rank correlation of each statistic with "
                       "the number of tokens.",
                       1);
        if (agreement(h, maps, NULL, e) < 0)
            return e->code;
    }
    if (!cheap->count)
        return 0;
    agreement_head(h, maps, "Is the cheap pass enough?",
                   "Spearman's rank correlation of each statistic, experts "
                   "run and left out.",
                   0);
    return agreement(h, maps, cheap, e);
}

int page_experts(struct html *h, const struct page *p, struct err *e)
{
    const struct hitmaps *maps = &p->w->hits;

    if (!maps->count)
        return 0;
    html_put(h, "<section id=\"experts\"><h2>Experts</h2>\n");
    few(h, maps, 0, 0.5, "Experts without a single token");
    few(h, maps, 0.5, FEW, "Experts with fewer than 128 tokens");
    if (map(h, maps, HIT_TOKENS, "Tokens",
            "Calibration tokens that the router sent to each expert, as a "
            "multiple of the mean of its layer.",
            e) < 0 ||
        (has_column(maps, HIT_OUTPUT) &&
         map(h, maps, HIT_OUTPUT, "What they add",
             "Sum over its tokens of the expert's weight times the norm of its "
             "output, as a multiple of the mean of its layer.",
             e) < 0))
        return e->code;
    html_put(h, "</section><section>\n");
    if (balance(h, maps, e) < 0 ||
        agreements(h, maps, &p->params->cheap, e) < 0)
        return e->code;
    html_put(h, "</section>\n");
    return 0;
}
