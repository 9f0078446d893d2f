/* page_facts.c - the head of the page: what was made, by which command, from
 * what, and what went wrong. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "layout/layout.h"
#include "report/section.h"
#include "report/sizes.h"

enum { NAMES_MAX = 40, WORD_CAP = 4096 };

/* ---- tiles ---- */

static void tile(struct html *h, const char *value, const char *what)
{
    html_put(h, "<div class=\"tile\"><b>%s</b><span>%s</span></div>\n", value,
             what);
}

static void size_tiles(struct html *h, const struct page *p)
{
    const struct workdir *w = p->w;
    double bits = sizes_linear_bits(w);
    char a[32], b[32], what[96];

    if (w->bytes_out > 0) {
        html_bytes(a, w->bytes_out);
        snprintf(what, sizeof(what), "of weights");
        if (w->bytes_in > 0)
            snprintf(what, sizeof(what), "of weights, %.0f %% of %s",
                     100 * w->bytes_out / w->bytes_in,
                     html_bytes(b, w->bytes_in));
        tile(h, a, what);
    }
    if (isnan(bits))
        return;
    snprintf(a, sizeof(a), "%.2f bits", bits);
    snprintf(what, sizeof(what), "per quantized weight; %.2f of all",
             sizes_bits(w));
    tile(h, a, what);
}

static void loss_tiles(struct html *h, const struct page *p)
{
    const char *const other[] = { "round-to-nearest", p->compared };
    char value[64], what[128];

    for (size_t i = 0; i < (p->compared ? 2 : 1); i++) {
        double ratio = loss_ratio(page_loss_sum(p, 2), page_loss_sum(p, i));

        if (isnan(ratio))
            continue;
        snprintf(value, sizeof(value), "%.3f", ratio);
        snprintf(what, sizeof(what), "of the loss of %s", other[i]);
        tile(h, value, what);
    }
}

static void quality_tiles(struct html *h, const struct page *p)
{
    const struct figures *f = figures_whole(p->r);
    char value[64], what[96];

    if (!f)
        return;
    snprintf(value, sizeof(value), "%.4f", f->kl_mean);
    snprintf(what, sizeof(what), "KL divergence, nats \xc2\xb1 %.4f",
             isnan(f->kl_sem) ? 0 : f->kl_sem);
    tile(h, value, what);
    snprintf(value, sizeof(value), "%.1f %%", 100 * f->top1);
    tile(h, value, "same most likely token");
    snprintf(value, sizeof(value), "%+.2f %%",
             100 * (f->ppl / f->ppl_original - 1));
    snprintf(what, sizeof(what), "perplexity, %.2f \xe2\x86\x92 %.2f",
             f->ppl_original, f->ppl);
    if (f->ppl_original > 0)
        tile(h, value, what);
}

/* Whether the last call did the work, rather than to find it done: then its
 * time and memory are those of the run. */
static bool did_the_work(const struct page *p, double steps)
{
    return !isnan(p->w->seconds) && p->w->seconds >= steps / 2;
}

static void cost_tiles(struct html *h, const struct page *p)
{
    double steps = 0;
    char text[32], bytes[32], what[96];

    for (size_t i = 0; i < p->r->steps; i++)
        steps += p->r->step[i].seconds;
    if (!did_the_work(p, steps)) {
        if (steps > 0)
            tile(h, html_seconds(text, steps), "time of all steps");
        return;
    }
    snprintf(what, sizeof(what), "time");
    if (!isnan(p->w->peak_bytes))
        snprintf(what, sizeof(what), "time; memory at most %s",
                 html_bytes(bytes, p->w->peak_bytes));
    tile(h, html_seconds(text, p->w->seconds), what);
}

void page_tiles(struct html *h, const struct page *p)
{
    html_put(h, "<div class=\"tiles\">\n");
    size_tiles(h, p);
    quality_tiles(h, p);
    loss_tiles(h, p);
    cost_tiles(h, p);
    html_put(h, "</div>\n");
}

/* ---- what was done ---- */

static void fact(struct html *h, const char *name, const char *value)
{
    if (*value)
        html_put(h, "<tr><th>%s</th><td>%s</td></tr>\n", name, value);
}

static void fact_path(struct html *h, const struct page *p, const char *name,
                      const char *key)
{
    char text[256];

    path_title(text, sizeof(text), page_text(p, key));
    fact(h, name, text);
}

static void fact_command(struct html *h, const struct page *p)
{
    const struct json *v = json_get(json_root(p->w->run.doc), "command");
    char word[WORD_CAP];
    const char *text;

    if (!json_count(v))
        return;
    html_put(h, "<tr><th>command</th><td><code>");
    for (v = json_first(v); v; v = json_after(v))
        if (json_string(v, &text)) {
            page_shell_word(word, sizeof(word), text);
            html_put(h, "%s ", word);
        }
    html_put(h, "</code></td></tr>\n");
}

static void fact_host(struct html *h, const struct page *p)
{
    const char *host = page_text(p, "host"), *cpu = page_text(p, "cpu");
    const char *gpu = page_text(p, "gpu");
    char date[32];

    fact(h, "date", page_date(p, date));
    if (!*host && !*cpu)
        return;
    html_put(h, "<tr><th>host</th><td>%s%s%s%s%s%s</td></tr>\n", host,
             *host && *cpu ? ", " : "", *cpu ? "CPU level " : "", cpu,
             *gpu ? ", GPU " : "", gpu);
}

static void fact_modules(struct html *h, const struct page *p)
{
    uint64_t eight = sizes_eight(p->w);
    char kinds[64];

    html_put(h, "<tr><th>linear layers</th><td>%zu quantized", p->r->modules);
    if (eight)
        html_put(h, " (%s)",
                 layout_kinds_text(kinds, p->r->modules - eight, eight));
    if (p->w->modules > (int64_t)p->r->modules)
        html_put(h, " so far, of %lld", (long long)p->w->modules);
    html_put(h, ", in %zu decoder layers</td></tr>\n", p->layers);
}

static void fact_grid(struct html *h, const struct page *p)
{
    bool symmetric = settings_flag(&p->w->run, "symmetric");
    const struct json *v = json_get(json_root(p->w->run.doc), "grids");
    double linears = sizes_linear_bits(p->w), all = sizes_bits(p->w);
    const char *rule;
    char group[24];

    snprintf(group, sizeof(group), "%lld", page_number(p, "group"));
    html_put(h, "<tr><th>grid</th><td>one scale%s for %s inputs, %s",
             symmetric ? "" : " and zero", strcmp(group, "-1") ? group : "all",
             symmetric ? "symmetric" : "asymmetric");
    for (v = json_first(v); v; v = json_after(v))
        if (json_string(v, &rule))
            html_put(h, "; <code>%s</code>", rule);
    html_put(h, "</td></tr>\n");
    if (isnan(linears) && isnan(all))
        return;
    html_put(h, "<tr><th>bits per weight</th><td>");
    if (!isnan(linears))
        html_put(h, "%.3f of the quantized linear layers, scales included",
                 linears);
    if (!isnan(all))
        html_put(h, "%s%.3f of the whole checkpoint",
                 isnan(linears) ? "" : "; ", all);
    html_put(h, "</td></tr>\n");
}

/* Whether fewer tokens were calibrated on than asked for; false: not known. */
static bool short_of_data(const struct page *p)
{
    int64_t want = settings_number(&p->w->run, "sequences", 0);

    return p->w->tokens.sequences && p->w->tokens.sequences < (uint64_t)want;
}

static void fact_data(struct html *h, const struct page *p)
{
    const struct tally *t = &p->w->tokens;
    const char *text = page_text(p, "text"), *way = page_text(p, "propagate");
    char name[256];

    if (!strcmp(page_text(p, "method"), "rtn") || !*text)
        return;
    path_title(name, sizeof(name), text);
    html_put(h, "<tr><th>calibration</th><td>");
    if (t->sequences)
        html_put(h, "%llu tokens in %llu sequences",
                 (unsigned long long)t->tokens,
                 (unsigned long long)t->sequences);
    else
        html_put(h, "%lld sequences of %lld tokens",
                 page_number(p, "sequences"), page_number(p, "seqlen"));
    html_put(h,
             " of %s, each layer on the output of the %s ones before it%s"
             "</td></tr>\n",
             name, !strcmp(way, "original") ? way : "quantized",
             strcmp(way, "both") != 0 ? "" :
                                        ", led to what the original ones give");
}

void page_facts(struct html *h, const struct page *p)
{
    const char *order = p->r->modules ? p->r->module[0].order : "";
    char method[LABEL_MAX];

    html_put(h, "<section id=\"facts\"><h2>What was done</h2>\n"
                "<table class=\"facts\">\n");
    fact_command(h, p);
    fact_host(h, p);
    fact_path(h, p, "model", "model");
    fact_path(h, p, "result", "out");
    fact_modules(h, p);
    page_method(p, method);
    html_put(h, "<tr><th>method</th><td>%s%s%s</td></tr>\n", method,
             *order ? ", order: " : "", order);
    fact_grid(h, p);
    fact(h, "layout", page_text(p, "layout"));
    fact_data(h, p);
    html_put(h, "</table></section>\n");
}

/* ---- warnings ---- */

static bool is_fallback(const struct page *p, const struct module *m)
{
    return !strcmp(m->method, "rtn") &&
           strcmp(page_text(p, "method"), "rtn") != 0;
}

static bool is_raised(const struct page *p, const struct module *m)
{
    return m->tries > 1 && !is_fallback(p, m);
}

static bool has_kept(const struct page *p, const struct module *m)
{
    (void)p;
    return m->kept > 0;
}

static void list_modules(struct html *h, const struct page *p,
                         bool (*is)(const struct page *, const struct module *),
                         const char *what)
{
    size_t n = 0, shown = 0;

    for (size_t i = 0; i < p->r->modules; i++)
        n += is(p, &p->r->module[i]);
    if (!n)
        return;
    html_put(h, "<p class=\"alert\">%s (%zu): ", what, n);
    for (size_t i = 0; i < p->r->modules && shown < NAMES_MAX; i++)
        if (is(p, &p->r->module[i]))
            html_put(h, "%s<code>%s</code>", shown++ ? ", " : "",
                     p->r->module[i].name);
    html_put(h, n > shown ? " and %zu more.</p>\n" : ".</p>\n", n - shown);
}

void page_alerts(struct html *h, const struct page *p)
{
    char what[160];
    int64_t rows = 0;

    if (p->w->layers_done < p->layers)
        html_put(h,
                 "<p class=\"alert\">The run is not complete: %zu of %zu "
                 "layers are solved.</p>\n",
                 p->w->layers_done, p->layers);
    if (short_of_data(p))
        html_put(h,
                 "<p class=\"alert\">The text gave %llu sequences, %lld were "
                 "asked for.</p>\n",
                 (unsigned long long)p->w->tokens.sequences,
                 page_number(p, "sequences"));
    list_modules(h, p, is_fallback,
                 "Rounded to nearest, without their Hessian");
    list_modules(h, p, is_raised,
                 "Factored only with more damping than was asked for");
    for (size_t i = 0; i < p->r->modules; i++)
        rows += p->r->module[i].kept;
    snprintf(what, sizeof(what),
             "%lld rows whose corrected target was too far kept their weights "
             "as the target; their modules",
             (long long)rows);
    list_modules(h, p, has_kept, what);
}
