/* page.c - see page.h: the frame of the page, and the programs that took part. */
#include "report/page.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/io/json.h"
#include "layout/layout.h"
#include "report/outputs.h"
#include "report/script.h"
#include "report/sizes.h"
#include "report/style.h"

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
    v = json_first(json_get(json_root(d), "programs"));
    if (v) {
        html_put(h, "<section id=\"programs\"><h2>Programs</h2>\n"
                    "<p class=\"note\">What took part in layer 0, with the "
                    "options that shape the result.</p>\n"
                    "<table class=\"programs\">\n");
        for (; v; v = json_after(v))
            program(h, v);
        html_put(h, "</table></section>\n");
    }
    json_free(d);
    return 0;
}

/* ---- page_write() ---- */

static void head(struct html *h, const struct page *p)
{
    uint64_t eight = sizes_eight(p->w);
    char date[32], method[LABEL_MAX], title[LABEL_MAX];
    const char *in = layout_in_bits(p->r->modules - eight, eight);

    snprintf(title, sizeof(title), "%s", in);
    if (eight)
        snprintf(title, sizeof(title), "%s, %.2f a weight", in,
                 sizes_linear_bits(p->w));

    page_method(p, method);
    html_put(h,
             "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n"
             "<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" "
             "content=\"width=device-width, initial-scale=1\"/>\n"
             "<title>%s%s</title>\n<style>",
             p->model, title);
    html_raw(h, page_style);
    html_put(h,
             "</style>\n</head>\n<body><main>\n<header><h1>%s%s</h1>\n"
             "<p class=\"soft\">%s, %s",
             p->model, title, page_text(p, "layout"), method);
    if (*page_date(p, date))
        html_put(h, " \xc2\xb7 %s", date);
    html_put(h, "</p></header>\n");
}

static int data_link(struct html *h, const struct page *p, const char *path,
                     const char *what, struct err *e)
{
    char link[3 * PATH_MAX];

    if (!path)
        return 0;
    if (outputs_link(link, sizeof(link), p->params->output, path, e) < 0)
        return e->code;
    html_put(h, " \xc2\xb7 <a href=\"%s\">%s</a>", link, what);
    return 0;
}

static int foot(struct html *h, const struct page *p, struct err *e)
{
    char key[256];

    path_title(key, sizeof(key), page_text(p, "S"));
    html_put(h, "<footer>forge-report %s, from <code>%s</code>", FORGE_VERSION,
             key);
    if (data_link(h, p, p->params->json, "all of it as JSON", e) < 0 ||
        data_link(h, p, p->params->csv, "the modules as CSV", e) < 0)
        return e->code;
    html_put(h, "</footer>\n</main>\n<script>");
    html_raw(h, page_script);
    html_put(h, "</script>\n</body>\n</html>\n");
    return 0;
}

int page_write(struct html *h, const struct page *p, struct err *e)
{
    int rc;

    head(h, p);
    page_tiles(h, p);
    page_alerts(h, p);
    page_facts(h, p);
    rc = page_evaluation(h, p, e);
    if (rc >= 0)
        rc = page_losses(h, p, e);
    if (rc >= 0)
        rc = page_experts(h, p, e);
    if (rc < 0)
        return rc;
    page_times(h, p);
    page_sizes(h, p);
    rc = history(h, p, e);
    if (rc >= 0)
        rc = foot(h, p, e);
    return rc >= 0 && h->failed ? err_set(e, E_TEMP, "report: out of memory") :
                                  rc;
}
