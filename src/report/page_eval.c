/* page_eval.c - the section that compares predictions with the original's, of
 * the run and of the checkpoints beside it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/section.h"

enum { SHOWN = PEERS_MAX + 1, SHA_SHOWN = 12 };

/* The share of the tokens that the histogram ends at. */
static const double FEW = 0.002;

/* The evaluations that are shown; the first is the run's. */
struct shown {
    const char *name[SHOWN], *class[SHOWN];
    const struct records *r[SHOWN];
    const struct figures *f[SHOWN]; /* of the whole checkpoint */
    size_t count;
};

static struct shown shown_of(const struct page *p)
{
    const struct peers *peers = &p->params->peers;
    struct shown s = {
        .name = { "this run" }, .class = { "ours" }, .r = { p->r }, .count = 1
    };

    for (size_t i = 0; i < peers->count; i++, s.count++) {
        s.name[s.count] = peers->peer[i].name;
        s.class[s.count] = page_peer_class[i % PEER_CLASSES];
        s.r[s.count] = &peers->peer[i].figures;
    }
    for (size_t i = 0; i < s.count; i++)
        s.f[i] = figures_whole(s.r[i]);
    return s;
}

/* ---- figures ---- */

static void subject(struct html *h, const struct page *p,
                    const struct figures *f)
{
    char out[256], sha[SHA_SHOWN + 1];

    path_title(out, sizeof(out), page_text(p, "out"));
    html_put(h, "<p class=\"note\">%s against %s, on ",
             *f->other ? f->other : out, p->model);
    if (*f->text)
        html_put(h, "<b>%s</b>", f->text);
    else
        html_put(h, "a text");
    snprintf(sha, sizeof(sha), "%.12s", f->sha256);
    if (*sha)
        html_put(h, " (SHA-256 %s\xe2\x80\xa6)", sha);
    html_put(h, ": predictions at %lld tokens", (long long)f->tokens);
    if (f->sequences > 0)
        html_put(h, ", in %lld sequences", (long long)f->sequences);
    if (f->seqlen > 0)
        html_put(h, " of %lld tokens", (long long)f->seqlen);
    if (*f->dtype)
        html_put(h, "; computed in %s", f->dtype);
    html_put(h, ". KL divergence is in nats for each token.</p>\n");
}

static void text_kl(double v, char label[LABEL_MAX])
{
    snprintf(label, LABEL_MAX, "%.5f", v);
}

static void text_ppl(double v, char label[LABEL_MAX])
{
    snprintf(label, LABEL_MAX, "%.4f", v);
}

static void text_top1(double v, char label[LABEL_MAX])
{
    snprintf(label, LABEL_MAX, "%.2f %%", 100 * v);
}

/* A row of the table: original (NAN: a dash), then each checkpoint. */
static void figure_row(struct html *h, const struct shown *s, const char *name,
                       label_text *text, double original, size_t member)
{
    html_put(h, "<tr><th>%s</th>", name);
    page_number_cell(h, "", text, original);
    for (size_t i = 0; i < s->count; i++) {
        double v;

        memcpy(&v, (const char *)s->f[i] + member, sizeof(v));
        page_number_cell(h, "", text, v);
    }
    html_put(h, "</tr>\n");
}

#define ROW(name, text, original, member)                                      \
    figure_row(h, s, name, text, original, offsetof(struct figures, member))

static void figures_table(struct html *h, const struct shown *s)
{
    html_put(h, "<div class=\"wide\"><table class=\"figures\"><tr><th></th>"
                "<th class=\"n\">original</th>");
    for (size_t i = 0; i < s->count; i++)
        page_number_head(h, "", s->name[i]);
    html_put(h, "</tr>\n");
    ROW("perplexity", text_ppl, s->f[0]->ppl_original, ppl);
    ROW("KL, mean", text_kl, NAN, kl_mean);
    ROW("\xc2\xb1 standard error", text_kl, NAN, kl_sem);
    ROW("KL, median", text_kl, NAN, kl_median);
    ROW("KL, 99 %", text_kl, NAN, kl_p99);
    ROW("KL, largest", text_ppl, NAN, kl_max);
    ROW("same top token", text_top1, NAN, top1);
    html_put(h, "</table></div>\n");
}

/* The means as bars, where there is something to compare. */
static void kl_bars(struct html *h, const struct shown *s)
{
    double most = 0;

    for (size_t i = 0; i < s->count; i++)
        most = fmax(most, s->f[i]->kl_mean);
    if (s->count < 2 || !(most > 0))
        return;
    html_put(h, "<h3>KL divergence, mean, in nats for each token</h3>\n"
                "<table class=\"ranks\">\n");
    for (size_t i = 0; i < s->count; i++) {
        double kl = s->f[i]->kl_mean;

        html_put(h,
                 "<tr><th>%s</th><td class=\"n\">%.5f</td><td class=\"w\">"
                 "<i class=\"%s\" style=\"width:%.1f%%\"></i></td></tr>\n",
                 s->name[i], kl, s->class[i], 100 * kl / most);
    }
    html_put(h, "</table>\n");
}

/* ---- the histogram ---- */

static void text_power(double v, char label[LABEL_MAX])
{
    snprintf(label, LABEL_MAX, v < 0.01 ? "%.0e" : "%.4g", v);
}

/* The bins from first to last, beyond which no evaluation has more than FEW of
 * its tokens in a bin: they count in the first and in the last. */
struct bins {
    size_t first, last;
};

static double kl_edge(const struct figures *f, size_t i)
{
    return f->kl_from * pow(10, (double)i / f->kl_per_decade);
}

static double share(const struct figures *f, size_t bin)
{
    return f->tokens > 0 ? (double)f->kl_count[bin] / (double)f->tokens : 0;
}

static struct bins bins_of(const struct shown *s)
{
    struct bins b = { FIGURES_BINS, 0 };

    for (size_t i = 0; i < s->count; i++)
        for (size_t k = 1; k + 1 < s->f[i]->kl_bins; k++)
            if (share(s->f[i], k) > FEW) {
                b.first = k < b.first ? k : b.first;
                b.last = k > b.last ? k : b.last;
            }
    if (b.first > b.last)
        b = (struct bins){ 1, 2 };
    return b;
}

/* x: the edges of the bins; y: the shares of the tokens up to each edge from the
 * one before it.  Returns their number. */
static size_t histogram_line(const struct figures *f, struct bins b, double *x,
                             double *y)
{
    size_t n = 1;

    for (size_t k = b.first; k <= b.last && k < f->kl_bins; k++, n++) {
        size_t from = k == b.first ? 0 : k;
        size_t to = k == b.last ? f->kl_bins - 1 : k;

        x[n] = kl_edge(f, k);
        y[n] = 0;
        for (size_t i = from; i <= to; i++)
            y[n] += share(f, i);
    }
    x[0] = kl_edge(f, b.first - 1);
    y[0] = 0;
    return n;
}

static void histogram(struct html *h, const struct shown *s)
{
    double x[SHOWN][FIGURES_BINS + 1], y[SHOWN][FIGURES_BINS + 1];
    struct bins bins = bins_of(s);
    struct series series[SHOWN];
    struct lines lines = { .series = series,
                           .x_name = "KL divergence of a token (nats)",
                           .y_name = "share of the tokens",
                           .x_text = text_power,
                           .y_text = text_percent,
                           .x_log = true,
                           .area = true };

    for (size_t i = 0; i < s->count; i++) {
        size_t k = lines.count;

        if (!s->f[i]->kl_bins)
            continue;
        series[k] = (struct series){
            .name = s->name[i], .class = s->class[i], .x = x[k], .y = y[k]
        };
        series[k].n = histogram_line(s->f[i], bins, x[k], y[k]);
        lines.count++;
    }
    if (!lines.count)
        return;
    html_put(h, "<h3>How the divergence spreads over the tokens</h3>\n"
                "<p class=\"note\">Four steps for each power of ten. The first "
                "and the last also hold what is beyond them.</p>\n");
    chart_lines(h, &lines);
}

/* ---- along the sequence ---- */

/* Of the evaluations that have the run's bins of positions. */
struct along {
    const struct figures *f[SHOWN];
    struct series ppl[SHOWN + 1], kl[SHOWN]; /* of f; behind ppl's, original */
    size_t count, bins;
    double x[FIGURES_POSITIONS], from[FIGURES_POSITIONS],
        ppl_original[FIGURES_POSITIONS];
    double y[SHOWN][3][FIGURES_POSITIONS]; /* perplexity, KL, its error */
};

static bool same_bins(const struct figures *a, const struct figures *b)
{
    if (a->positions != b->positions)
        return false;
    for (size_t i = 0; i < a->positions; i++)
        if (a->at[i].from != b->at[i].from ||
            a->at[i].tokens != b->at[i].tokens)
            return false;
    return true;
}

static void find_along(struct along *a, const struct shown *s)
{
    const struct figures *f = s->f[0];

    a->bins = f->positions;
    for (size_t k = 0; k < a->bins; k++) {
        a->x[k] = (double)k;
        a->from[k] = (double)f->at[k].from;
        a->ppl_original[k] = f->at[k].ppl_original;
    }
    for (size_t i = 0; i < s->count; i++) {
        size_t n = a->count;
        double *ppl = a->y[n][0], *kl = a->y[n][1], *sem = a->y[n][2];

        if (!same_bins(f, s->f[i]))
            continue;
        for (size_t k = 0; k < a->bins; k++) {
            ppl[k] = s->f[i]->at[k].ppl;
            kl[k] = s->f[i]->at[k].kl_mean;
            sem[k] = s->f[i]->at[k].kl_sem;
        }
        a->f[n] = s->f[i];
        a->ppl[n] = (struct series){ s->name[i], s->class[i], a -> bins,
                                     a -> x,     ppl,         NULL };
        a->kl[n] = (struct series){ s->name[i], s->class[i], a -> bins,
                                    a -> x,     kl,          sem };
        a->count++;
    }
    a->ppl[a->count] = (struct series){ "original", "original",      a->bins,
                                        a->x,       a->ppl_original, NULL };
}

static void along_table(struct html *h, const struct along *a)
{
    html_put(h, "<div class=\"wide\"><table class=\"figures\"><tr>"
                "<th>positions</th><th class=\"n\">tokens</th>"
                "<th class=\"n\">perplexity, original</th>");
    for (size_t i = 0; i < a->count; i++)
        html_put(h, "<th class=\"n\">%s</th><th class=\"n\">KL, mean</th>",
                 a->ppl[i].name);
    html_put(h, "</tr>\n");
    for (size_t k = 0; k < a->bins; k++) {
        const struct figures *f = a->f[0];
        /* the last position predicts the last token */
        int64_t end = k + 1 < a->bins ? f->at[k + 1].from : f->seqlen - 1;

        html_put(h, "<tr><th>%lld\xe2\x80\x93", (long long)f->at[k].from);
        if (end > f->at[k].from)
            html_put(h, "%lld", (long long)end - 1);
        html_put(h, "</th>");
        page_number_cell(h, "", text_whole, (double)f->at[k].tokens);
        page_number_cell(h, "", text_ppl, a->ppl_original[k]);
        for (size_t i = 0; i < a->count; i++) {
            page_number_cell(h, "", text_ppl, a->y[i][0][k]);
            page_number_cell(h, "", text_kl, a->y[i][1][k]);
        }
        html_put(h, "</tr>\n");
    }
    html_put(h, "</table></div>\n");
}

static void along(struct html *h, const struct shown *s)
{
    struct along a = { .count = 0 };
    struct lines lines = { .series = a.ppl,
                           .x_name = "position in the sequence, from",
                           .y_name = "perplexity, logarithmic",
                           .x_text = text_whole,
                           .y_text = text_plain,
                           .y_log = true,
                           .whole = true,
                           .step = a.from };

    find_along(&a, s);
    if (!a.bins)
        return;
    html_put(h, "<h3>Along the sequence</h3>\n<p class=\"note\">Perplexity and "
                "KL divergence by the position of a token in its sequence: "
                "later ones have more in front of them. The bands are standard "
                "errors.</p>\n");
    lines.count = a.count + 1;
    chart_lines(h, &lines);
    lines.series = a.kl;
    lines.count = a.count;
    lines.y_name = "KL divergence (nats)";
    lines.y_log = false;
    chart_lines(h, &lines);
    along_table(h, &a);
}

/* ---- layer by layer ---- */

/* Lines over the layers: n points of an evaluation that has them. */
struct by_layer {
    struct series kl[SHOWN], top1[SHOWN];
    size_t count;
    double *memory;
};

static int by_layer(struct by_layer *b, const struct shown *s, struct err *e)
{
    size_t all = 0;
    double *at;

    for (size_t i = 0; i < s->count; i++)
        all += s->r[i]->n_figures;
    at = b->memory = mem_zero(all + 1, 4 * sizeof(double), "report", e);
    if (!at)
        return e->code;
    for (size_t i = 0; i < s->count; i++) {
        size_t n = s->r[i]->n_figures, k = 0;
        double *x = at, *kl = at + n, *sem = at + 2 * n, *top1 = at + 3 * n;

        for (size_t m = 0; m < n; m++) {
            const struct figures *f = &s->r[i]->figures[m];

            if (f->layer < 0 || (k && (double)f->layer <= x[k - 1]))
                continue;
            x[k] = (double)f->layer;
            kl[k] = f->kl_mean;
            sem[k] = f->kl_sem;
            top1[k++] = f->top1;
        }
        if (!k)
            continue;
        at += 4 * n;
        b->kl[b->count] =
            (struct series){ s->name[i], s->class[i], k, x, kl, sem };
        b->top1[b->count++] =
            (struct series){ s->name[i], s->class[i], k, x, top1, NULL };
    }
    return 0;
}

static int layers(struct html *h, const struct shown *s, struct err *e)
{
    struct by_layer b = { .count = 0 };
    struct lines lines = { .series = b.kl,
                           .x_name = "quantized up to layer",
                           .y_name = "KL divergence (nats)",
                           .x_text = text_whole,
                           .y_text = text_plain,
                           .whole = true };

    if (by_layer(&b, s, e) < 0)
        return e->code;
    lines.count = b.count;
    if (b.count) {
        html_put(h, "<h3>As layer after layer is replaced</h3>\n"
                    "<p class=\"note\">KL divergence of the model whose layers "
                    "up to this one are quantized and the rest original; the "
                    "band is the standard error.</p>\n");
        chart_lines(h, &lines);
        lines.series = b.top1;
        lines.y_name = "same most likely token";
        lines.y_text = text_percent;
        lines.top = true;
        html_put(h,
                 "<h3>How often the most likely token stays the same</h3>\n");
        chart_lines(h, &lines);
    }
    free(b.memory);
    return 0;
}

int page_evaluation(struct html *h, const struct page *p, struct err *e)
{
    struct shown s = shown_of(p);
    int rc;

    if (!s.f[0])
        return 0;
    html_put(h, "<section id=\"eval\"><h2>Beside the original</h2>\n");
    subject(h, p, s.f[0]);
    figures_table(h, &s);
    kl_bars(h, &s);
    histogram(h, &s);
    along(h, &s);
    rc = layers(h, &s, e);
    html_put(h, "</section>\n");
    return rc;
}
