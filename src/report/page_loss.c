/* page_loss.c - the section about losses, compared with round to nearest: by
 * kind of module and layer, and the worst modules. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/section.h"

enum { WORST = 12 };

static double cell_ratio(const void *arg, size_t row, size_t col)
{
    const struct page *p = arg;
    const double *cell = p->cell + 2 * (row * p->layers + col);

    return loss_ratio(cell[0], cell[1]);
}

static void kind_label(const void *arg, size_t row, char label[LABEL_MAX])
{
    const struct page *p = arg;
    const char *s = p->r->kind[row];
    size_t n = strlen(s);

    /* the label's width fits about 30 characters */
    if (n > 30)
        snprintf(label, LABEL_MAX, "\xe2\x80\xa6%s", s + n - 29);
    else
        snprintf(label, LABEL_MAX, "%s", s);
}

static void loss_map(struct html *h, const struct page *p)
{
    struct heat heat = { .rows = p->r->kinds,
                         .cols = p->layers,
                         .col_name = "layer",
                         .unit = "loss / loss of round-to-nearest",
                         .value = cell_ratio,
                         .row_label = kind_label,
                         .col_label = page_index_label,
                         .arg = p,
                         .low = 1,
                         .high = 0 };

    for (size_t i = 0; i < heat.rows; i++)
        for (size_t k = 0; k < heat.cols; k++) {
            double v = cell_ratio(p, i, k);

            heat.low = v < heat.low ? v : heat.low;
            heat.high = v > heat.high ? v : heat.high;
        }
    heat.low = floor(heat.low * 20) / 20;
    heat.high = ceil(heat.high * 20) / 20;
    html_put(h,
             "<h3>Beside round-to-nearest</h3>\n<p class=\"note\">Loss of "
             "each kind of linear layer in each decoder layer, as a share of "
             "what rounding to nearest would lose: fainter is better.</p>\n");
    chart_heat(h, &heat);
}

static double layer_loss(const void *arg, size_t group, size_t series)
{
    const struct page *p = arg;
    size_t at = p->compared ? series : 2 * series;

    return p->loss[3 * group + at];
}

static void loss_bars(struct html *h, const struct page *p)
{
    const char *const name[] = { "round to nearest",
                                 p->compared ? p->compared : "this run",
                                 "this run" };
    const char *const class[] = { "rtn", p->compared ? "gptq" : "ours",
                                  "ours" };
    const struct bars bars = { .groups = p->layers,
                               .series = p->compared ? 3 : 2,
                               .series_name = name,
                               .series_class = class,
                               .group_name = "layer",
                               .value = layer_loss,
                               .group_label = page_index_label,
                               .text = page_plain_text,
                               .arg = p };

    html_put(h, "<h3>Layer by layer</h3>\n<p class=\"note\">Twice the squared "
                "error of the outputs, mean over the calibration tokens, sum "
                "over all linear layers of a decoder layer.</p>\n");
    chart_bars(h, &bars);
}

static int by_ratio(const void *a, const void *b)
{
    double x = module_ratio(*(const struct module *const *)a);
    double y = module_ratio(*(const struct module *const *)b);

    x = isnan(x) ? -1 : x;
    y = isnan(y) ? -1 : y;
    return (x < y) - (x > y);
}

static void worst_row(struct html *h, const struct page *p,
                      const struct module *m)
{
    double ratio = module_ratio(m);

    html_put(h, "<tr><td><code>%s</code></td><td>%s</td>", m->name, m->method);
    if (m->samples >= 0)
        html_put(h, "<td class=\"n\">%lld</td>", (long long)m->samples);
    else
        html_put(h, "<td></td>");
    html_put(h, "<td class=\"n\">%.4g</td><td class=\"n\">%.4g</td>", m->loss,
             m->loss_rtn);
    if (p->compared && !isnan(m->loss_compared))
        html_put(h, "<td class=\"n\">%.4g</td>", m->loss_compared);
    else if (p->compared)
        html_put(h, "<td></td>");
    html_put(h,
             "<td class=\"n\">%.3f</td><td class=\"w\"><i class=\"ours\" "
             "style=\"width:%.1f%%\"></i></td></tr>\n",
             ratio, 100 * (ratio < 1 ? ratio : 1));
}

static int worst(struct html *h, const struct page *p, struct err *e)
{
    size_t n = p->r->modules;
    const struct module **m = mem_zero(n, sizeof(*m), "report", e);

    if (!m)
        return e->code;
    for (size_t i = 0; i < n; i++)
        m[i] = &p->r->module[i];
    qsort(m, n, sizeof(*m), by_ratio);
    html_put(h, "<h3>Worst linear layers</h3>\n<p class=\"note\">By the share "
                "of their loss in that of rounding to nearest.</p>\n"
                "<table class=\"worst\">"
                "<tr><th>name</th><th class=\"m\">method</th>"
                "<th class=\"n\">tokens</th>"
                "<th class=\"n\">loss</th><th class=\"n\">rounding</th>");
    if (p->compared)
        html_put(h, "<th class=\"n\">%s</th>", p->compared);
    html_put(h, "<th class=\"n\">share</th><th></th></tr>\n");
    for (size_t i = 0; i < n && i < WORST && !isnan(module_ratio(m[i])); i++)
        worst_row(h, p, m[i]);
    html_put(h, "</table>\n");
    free(m);
    return 0;
}

static void sampling(struct html *h, const struct page *p)
{
    int64_t low = INT64_MAX, high = -1;
    double damping = NAN;

    for (size_t i = 0; i < p->r->modules; i++) {
        const struct module *m = &p->r->module[i];

        if (m->samples < 0)
            continue;
        low = m->samples < low ? m->samples : low;
        high = m->samples > high ? m->samples : high;
        damping = isnan(damping) || m->damping < damping ? m->damping : damping;
    }
    if (high < 0)
        return;
    html_put(h, "<p class=\"note\">Tokens behind a Hessian: %lld",
             (long long)low);
    if (high > low)
        html_put(h, " to %lld", (long long)high);
    if (!isnan(damping))
        html_put(h, "; damping %.4g", damping);
    html_put(h, ".</p>\n");
}

int page_losses(struct html *h, const struct page *p, struct err *e)
{
    int rc;

    if (!p->has_loss)
        return 0;
    html_put(h,
             "<section id=\"loss\"><h2>Loss</h2>\n<p class=\"note\">How far "
             "a linear layer's outputs on the calibration text are from "
             "their target, (w \xe2\x88\x92 q) H (w \xe2\x88\x92 q)"
             "\xe1\xb5\x80%s.</p>\n",
             !p->compared ? "" :
             p->plain ? "; the same target and H for rounding to nearest and "
                        "plain GPTQ, on grids fixed beforehand" :
                        "");
    loss_map(h, p);
    html_put(h, "</section><section>\n");
    loss_bars(h, p);
    html_put(h, "</section><section>\n");
    rc = worst(h, p, e);
    sampling(h, p);
    html_put(h, "</section>\n");
    return rc;
}
