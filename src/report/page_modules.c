/* page_modules.c - the table of linear layers, worst first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/section.h"
#include "report/sizes.h"

/* Rows: more make a page that nobody scrolls, and a slow one. */
enum { ROWS_MAX = 1000 };

static int by_ratio(const void *a, const void *b)
{
    const struct module *const *m = a, *const *n = b;
    double x = module_ratio(*m), y = module_ratio(*n);

    x = isnan(x) ? -1 : x;
    y = isnan(y) ? -1 : y;
    return x != y ? (x < y) - (x > y) : (*m > *n) - (*m < *n);
}

/* A module's name, which may be broken behind its dots. */
static void put_name(struct html *h, const char *name)
{
    html_put(h, "<td class=\"name\"><code>");
    for (size_t n; *name; name += n) {
        char part[512];

        n = strcspn(name, ".");
        n += name[n] == '.';
        n = n < sizeof(part) ? n : sizeof(part) - 1;
        memcpy(part, name, n);
        part[n] = 0;
        html_put(h, name[n] ? "%s<wbr/>" : "%s", part);
    }
    html_put(h, "</code></td>");
}

static void row(struct html *h, const struct page *p, const struct module *m)
{
    double ratio = module_ratio(m), samples = (double)m->samples;

    html_put(h, "<tr>");
    put_name(h, m->name);
    html_put(h, "<td class=\"x\">%s</td>", m->method);
    page_number_cell(h, " x", text_bits, sizes_module_bits(m));
    page_number_cell(h, " x", text_whole, m->samples < 0 ? NAN : samples);
    page_number_cell(h, "", text_plain, m->loss);
    page_number_cell(h, "", text_plain, m->loss_rtn);
    if (p->compared)
        page_number_cell(h, " x", text_plain, m->loss_compared);
    page_number_cell(h, "", text_ratio, ratio);
    html_put(h, "<td class=\"w x\">");
    if (!isnan(ratio))
        html_put(h, "<i class=\"ours\" style=\"width:%.1f%%\"></i>",
                 100 * (ratio < 1 ? ratio : 1));
    html_put(h, "</td>");
    page_number_cell(h, " x", text_plain, 1000 * m->seconds);
    html_put(h, "</tr>\n");
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

static void head(struct html *h, const struct page *p)
{
    html_put(h, "<div class=\"rows\"><table class=\"sortable\"><thead><tr>"
                "<th>name</th><th class=\"x\">method</th>");
    page_number_head(h, " x", "bits");
    page_number_head(h, " x", "tokens");
    page_number_head(h, "", "loss");
    page_number_head(h, "", "RTN");
    if (p->compared)
        page_number_head(h, " x", p->compared);
    page_number_head(h, "", "share");
    html_put(h, "<th class=\"x\"></th>");
    page_number_head(h, " x", "ms");
    html_put(h, "</tr></thead><tbody>\n");
}

int page_modules(struct html *h, const struct page *p, struct err *e)
{
    size_t n = p->r->modules, shown = n < ROWS_MAX ? n : ROWS_MAX;
    const struct module **m;

    if (!n)
        return 0;
    m = mem_zero(n, sizeof(*m), "report", e);
    if (!m)
        return e->code;
    for (size_t i = 0; i < n; i++)
        m[i] = &p->r->module[i];
    qsort(m, n, sizeof(*m), by_ratio);
    html_put(h,
             "<section id=\"modules\"><h2>Linear layers</h2>\n"
             "<p class=\"note\">%sA click on a head sorts.",
             p->has_loss ? "Worst first: by the share of their loss in that of "
                           "rounding to nearest (RTN). " :
                           "");
    if (shown < n)
        html_put(h, " These are %zu of %zu; --csv writes all.", shown, n);
    html_put(h, "</p>\n");
    head(h, p);
    for (size_t i = 0; i < shown; i++)
        row(h, p, m[i]);
    html_put(h, "</tbody></table></div>\n");
    sampling(h, p);
    html_put(h, "</section>\n");
    free(m);
    return 0;
}
