/* page_cost.c - the sections about time and disk space. */
#include <stdio.h>
#include <string.h>

#include "report/section.h"

static double layer_seconds(const void *arg, size_t group, size_t series)
{
    const struct page *p = arg;

    return p->layer_second[group * STEP_NAMES + series];
}

static void seconds_text(double v, char label[LABEL_MAX])
{
    char buf[32];

    snprintf(label, LABEL_MAX, "%s", v > 0 ? html_seconds(buf, v) : "0");
}

/* The title of a step of `forge stage`. */
static const char *step_title(const char *name)
{
    static const char *const title[][2] = {
        { "loop", "calibration and solving" },
        { "calibrate", "calibration" },
        { "solve", "solving" },
        { "round", "rounding" },
        { "result", "packing and writing" },
    };

    for (size_t i = 0; i < ARRAY_LEN(title); i++)
        if (!strcmp(title[i][0], name))
            return title[i][1];
    return name;
}

static void step_table(struct html *h, const struct page *p)
{
    struct page all = { .steps = 0 };
    double sum[STEP_NAMES] = { 0 }, most = 0;
    size_t calls[STEP_NAMES] = { 0 };
    char buf[32];

    for (size_t i = 0; i < p->r->steps; i++) {
        size_t k = page_step(&all, p->r->step[i].name);

        if (k == STEP_NAMES)
            continue;
        sum[k] += p->r->step[i].seconds;
        calls[k]++;
        most = sum[k] > most ? sum[k] : most;
    }
    if (!all.steps)
        return;
    html_put(h, "<table><tr><th>step</th><th class=\"n\">calls</th>"
                "<th class=\"n\">time</th><th></th></tr>\n");
    for (size_t k = 0; k < all.steps; k++)
        html_put(h,
                 "<tr><td>%s</td><td class=\"n\">%zu</td><td class=\"n\">%s"
                 "</td><td class=\"w\"><i class=\"ours\" "
                 "style=\"width:%.1f%%\"></i></td></tr>\n",
                 step_title(all.step_name[k]), calls[k],
                 html_seconds(buf, sum[k]), most > 0 ? 100 * sum[k] / most : 0);
    html_put(h, "</table>\n");
}

void page_times(struct html *h, const struct page *p)
{
    static const char *const class[STEP_NAMES] = {
        "ours", "gptq", "rtn", "p2", "p3", "p4", "p5",   "ours",
        "gptq", "rtn",  "p2",  "p3", "p4", "p5", "ours", "gptq"
    };
    const char *name[STEP_NAMES] = { NULL };
    const struct bars bars = { .groups = p->layers,
                               .series = p->steps,
                               .series_name = name,
                               .series_class = class,
                               .x_name = "layer",
                               .y_name = "time of a layer",
                               .value = layer_seconds,
                               .text = seconds_text,
                               .arg = p,
                               .stacked = true };

    if (!p->steps && !p->r->steps)
        return;
    for (size_t i = 0; i < p->steps; i++)
        name[i] = step_title(p->step_name[i]);
    html_put(h, "<section id=\"time\"><h2>Time</h2>\n");
    step_table(h, p);
    if (p->steps && p->solving_alone)
        html_put(h,
                 "<p class=\"note\">Solving alone, without calibration.</p>\n");
    if (p->steps)
        chart_bars(h, &bars);
    html_put(h, "</section>\n");
}

static void size_row(struct html *h, const char *what, size_t files,
                     double bytes, double most)
{
    char buf[32];

    if (bytes == 0)
        return;
    html_put(h, "<tr><td>%s</td>", what);
    if (files)
        html_put(h, "<td class=\"n\">%zu</td>", files);
    else
        html_put(h, "<td></td>");
    html_put(h,
             "<td class=\"n\">%s</td><td class=\"w\"><i class=\"ours\" "
             "style=\"width:%.1f%%\"></i></td></tr>\n",
             html_bytes(buf, bytes), 100 * bytes / most);
}

void page_sizes(struct html *h, const struct page *p)
{
    static const char *const name[STAGES] = { "tokens",
                                              "calibration: Hessians, states",
                                              "codes and grids" };
    const struct workdir *w = p->w;
    double most = w->bytes_in > w->bytes_out ? w->bytes_in : w->bytes_out;

    for (int i = 0; i < STAGES; i++)
        most = w->stage_bytes[i] > most ? w->stage_bytes[i] : most;
    html_put(h, "<section id=\"size\"><h2>Sizes</h2>\n<table><tr><th></th>"
                "<th class=\"n\">files</th><th class=\"n\">bytes</th><th></th>"
                "</tr>\n");
    size_row(h, "original checkpoint", 0, w->bytes_in, most);
    for (int i = 0; i < STAGES; i++)
        size_row(h, name[i], w->stage_files[i], w->stage_bytes[i], most);
    size_row(h, "quantized checkpoint", 0, w->bytes_out, most);
    html_put(h, "</table></section>\n");
}
