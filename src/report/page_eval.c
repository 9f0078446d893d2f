/* page_eval.c - the section that compares predictions with the original's. */
#include <math.h>
#include <stdio.h>

#include "report/section.h"

static const struct figures *line_figures(const void *arg, size_t i)
{
    const struct page *p = arg;
    size_t k = 0;

    for (; p->r->figures[k].layer < 0 || i > 0; k++)
        i -= p->r->figures[k].layer >= 0;
    return &p->r->figures[k];
}

static double kl_of(const void *arg, size_t i)
{
    return line_figures(arg, i)->kl_mean;
}
static double sem_of(const void *arg, size_t i)
{
    double s = line_figures(arg, i)->kl_sem;

    return isfinite(s) ? s : 0;
}
static double top1_of(const void *arg, size_t i)
{
    return line_figures(arg, i)->top1;
}
static void figures_label(const void *arg, size_t i, char label[LABEL_MAX])
{
    snprintf(label, LABEL_MAX, "%lld", (long long)line_figures(arg, i)->layer);
}
static void percent_text(double v, char label[LABEL_MAX])
{
    snprintf(label, LABEL_MAX, "%.4g %%", 100 * v);
}

static void figures_table(struct html *h, const struct figures *f)
{
    html_put(h,
             "<table><tr><th class=\"n\">perplexity, original</th>"
             "<th class=\"n\">quantized</th><th class=\"n\">KL mean</th>"
             "<th class=\"n\">median</th><th class=\"n\">99 %%</th>"
             "<th class=\"n\">max</th><th class=\"n\">top-1</th></tr>\n"
             "<tr><td class=\"n\">%.4f</td><td class=\"n\">%.4f</td>"
             "<td class=\"n\">%.5f \xc2\xb1 %.5f</td><td class=\"n\">%.5f</td>"
             "<td class=\"n\">%.5f</td><td class=\"n\">%.4f</td>"
             "<td class=\"n\">%.2f %%</td></tr></table>\n",
             f->ppl_original, f->ppl, f->kl_mean, f->kl_sem, f->kl_median,
             f->kl_p99, f->kl_max, 100 * f->top1);
}

void page_evaluation(struct html *h, const struct page *p)
{
    const struct figures *f = page_figures(p);
    struct line line = { .x_name = "quantized up to layer",
                         .y_name = "KL divergence",
                         .value = kl_of,
                         .spread = sem_of,
                         .x_label = figures_label,
                         .text = page_plain_text,
                         .arg = p,
                         .class = "ours" };

    if (!p->r->n_figures)
        return;
    html_put(h, "<section id=\"eval\"><h2>Beside the original</h2>\n");
    if (f && f->tokens >= 0)
        html_put(h,
                 "<p class=\"note\">Predictions at %lld tokens, in natural "
                 "logarithms.</p>\n",
                 (long long)f->tokens);
    if (f)
        figures_table(h, f);
    for (size_t i = 0; i < p->r->n_figures; i++)
        line.n += p->r->figures[i].layer >= 0;
    if (line.n) {
        html_put(h, "<h3>As layer after layer is replaced</h3>\n"
                    "<p class=\"note\">KL divergence of the model whose layers "
                    "up to this one are quantized and the rest original; the "
                    "band is the standard error.</p>\n");
        chart_line(h, &line);
        line.value = top1_of;
        line.spread = NULL;
        line.y_name = "top-1 agreement";
        line.text = percent_text;
        line.percent = true;
        html_put(h,
                 "<h3>How often the most likely token stays the same</h3>\n");
        chart_line(h, &line);
    }
    html_put(h, "</section>\n");
}
