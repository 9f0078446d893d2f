/* page.c - see page.h. */
#include "report/page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"
#include "report/section.h"
#include "report/style.h"

enum { NAMES_MAX = 40 };

static const char *get(const struct page *p, const char *name)
{
    return settings_text(&p->w->run, name);
}

static long long number(const struct page *p, const char *name)
{
    return settings_number(&p->w->run, name, 0);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash && slash[1] ? slash + 1 : path;
}

static double loss_sum(const struct page *p, size_t series)
{
    double sum = 0;

    for (size_t i = 0; i < p->layers; i++)
        sum += p->loss[3 * i + series];
    return sum;
}

/* ---- facts of the run ---- */

static void tile(struct html *h, const char *value, const char *what)
{
    html_put(h, "<div class=\"tile\"><b>%s</b><span>%s</span></div>\n", value,
             what);
}

static void quality_tiles(struct html *h, const struct page *p)
{
    const struct figures *f = page_figures(p);
    char value[64], what[96];
    const char *const other[] = { "round-to-nearest", p->compared };

    for (size_t i = 0; i < (p->compared ? 2 : 1); i++) {
        double ratio = loss_ratio(loss_sum(p, 2), loss_sum(p, i));

        if (isnan(ratio))
            continue;
        snprintf(value, sizeof(value), "%.3f", ratio);
        snprintf(what, sizeof(what), "of the loss of %s", other[i]);
        tile(h, value, what);
    }
    if (!f)
        return;
    snprintf(value, sizeof(value), "%.4f", f->kl_mean);
    snprintf(what, sizeof(what), "KL divergence \xc2\xb1 %.4f",
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

static void tiles(struct html *h, const struct page *p)
{
    const struct workdir *w = p->w;
    char a[32], b[32], what[96];

    html_put(h, "<div class=\"tiles\">\n");
    if (w->bytes_out > 0) {
        html_bytes(a, w->bytes_out);
        if (w->bytes_in > 0)
            snprintf(what, sizeof(what), "of weights, %.0f %% of %s",
                     100 * w->bytes_out / w->bytes_in,
                     html_bytes(b, w->bytes_in));
        else
            snprintf(what, sizeof(what), "of weights");
        tile(h, a, what);
    }
    quality_tiles(h, p);
    if (!isnan(w->seconds))
        tile(h, html_seconds(a, w->seconds), "time of the last call");
    if (!isnan(w->peak_bytes))
        tile(h, html_bytes(a, w->peak_bytes), "memory at most");
    html_put(h, "</div>\n");
}

static void fact(struct html *h, const char *name, const char *value)
{
    if (*value)
        html_put(h, "<tr><th>%s</th><td>%s</td></tr>\n", name, value);
}

static void fact_modules(struct html *h, const struct page *p)
{
    html_put(h, "<tr><th>linear layers</th><td>%zu in 4 bits", p->r->modules);
    if (p->w->modules > (int64_t)p->r->modules)
        html_put(h, " so far, of %lld", (long long)p->w->modules);
    html_put(h, ", in %zu decoder layers</td></tr>\n", p->layers);
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
    const char *text = get(p, "text"), *way = get(p, "propagate");

    if (!strcmp(get(p, "method"), "rtn") || !*text)
        return;
    html_put(h, "<tr><th>calibration</th><td>");
    if (t->sequences)
        html_put(h, "%llu tokens in %llu sequences",
                 (unsigned long long)t->tokens,
                 (unsigned long long)t->sequences);
    else
        html_put(h, "%lld sequences of %lld tokens", number(p, "sequences"),
                 number(p, "seqlen"));
    html_put(h,
             " of %s, each layer on the output of the %s ones before it%s"
             "</td></tr>\n",
             base_name(text), !strcmp(way, "original") ? way : "quantized",
             strcmp(way, "both") != 0 ? "" :
                                        ", led to what the original ones give");
}

static void settings(struct html *h, const struct page *p)
{
    char grid[96], order[64] = "";
    bool symmetric = settings_flag(&p->w->run, "symmetric");

    snprintf(grid, sizeof(grid), "one scale%s for %lld inputs, %s",
             symmetric ? "" : " and zero", number(p, "group"),
             symmetric ? "symmetric" : "asymmetric");
    if (p->r->modules && p->r->module[0].order[0])
        snprintf(order, sizeof(order), ", order: %s", p->r->module[0].order);
    html_put(h, "<section><h2>What was done</h2>\n<table class=\"facts\">\n");
    fact(h, "model", base_name(get(p, "model")));
    fact(h, "result", base_name(get(p, "out")));
    fact_modules(h, p);
    html_put(h, "<tr><th>method</th><td>%s%s</td></tr>\n", get(p, "method"),
             order);
    fact(h, "effort", get(p, "effort"));
    fact(h, "grid", grid);
    fact(h, "layout", get(p, "layout"));
    fact_data(h, p);
    html_put(h, "</table></section>\n");
}

/* ---- warnings ---- */

static bool is_fallback(const struct page *p, const struct module *m)
{
    return !strcmp(m->method, "rtn") && strcmp(get(p, "method"), "rtn") != 0;
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

static void alerts(struct html *h, const struct page *p)
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
                 number(p, "sequences"));
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

/* ---- history ---- */

static void program(struct html *h, const struct json *v)
{
    const char *tool, *version = "", *word;

    if (!json_string(json_get(v, "tool"), &tool) ||
        !json_string(json_get(v, "version"), &version))
        return;
    html_put(h, "<tr><td><code>%s", tool);
    for (v = json_first(json_get(v, "args")); v; v = json_after(v))
        if (json_string(v, &word))
            html_put(h, " %s", word);
    html_put(h, "</code></td><td class=\"n soft\">%s</td></tr>\n", version);
}

/* HEAD's history, {"programs":[{"tool":..,"version":..,"args":[..]},..]}, as
 * command lines. */
static int history(struct html *h, const struct page *p, struct err *e)
{
    const struct json *v;
    struct json_doc *d;

    if (!p->w->history)
        return 0;
    if (json_parse(&d, p->w->history, strlen(p->w->history), "HEAD", e) < 0)
        return e->code;
    html_put(h, "<section><h2>Programs</h2>\n<p class=\"note\">What took part "
                "in layer 0, with the options that shape the result.</p>\n"
                "<table>\n");
    v = json_first(json_get(json_root(d), "programs"));
    for (; v; v = json_after(v))
        program(h, v);
    html_put(h, "</table></section>\n");
    json_free(d);
    return 0;
}

/* ---- page_write() ---- */

static void head(struct html *h, const struct page *p, const char *title)
{
    const char *model = title ? title : base_name(get(p, "model"));

    html_put(h,
             "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n"
             "<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" "
             "content=\"width=device-width, initial-scale=1\"/>\n"
             "<title>%s in 4 bits</title>\n<style>",
             model);
    html_raw(h, page_style);
    html_put(h,
             "</style>\n</head>\n<body><main>\n<header><h1>%s in 4 bits</h1>\n"
             "<p class=\"soft\">%s, %s</p></header>\n",
             model, get(p, "layout"), get(p, "method"));
}

int page_write(struct html *h, const struct workdir *w,
               const struct page_params *params, struct err *e)
{
    struct page p;
    int rc = page_open(
        &p, w, params->compared ? base_name(params->compared) : NULL, e);

    if (rc >= 0) {
        head(h, &p, params->title);
        tiles(h, &p);
        alerts(h, &p);
        settings(h, &p);
        page_evaluation(h, &p);
        rc = page_losses(h, &p, e);
    }
    if (rc >= 0)
        rc = page_experts(h, &p, &params->cheap, e);
    if (rc >= 0) {
        page_times(h, &p);
        page_sizes(h, &p);
        rc = history(h, &p, e);
        html_put(h,
                 "<footer>forge-report %s, from <code>%s</code></footer>\n"
                 "</main></body>\n</html>\n",
                 FORGE_VERSION, base_name(settings_text(&w->run, "S")));
    }
    page_close(&p);
    if (rc >= 0 && h->failed)
        return err_set(e, E_TEMP, "report: out of memory");
    return rc;
}
