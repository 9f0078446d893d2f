/* page_loss.c - the section about losses, compared with round to nearest: by
 * kind of module and layer. */
#include <math.h>
#include <stdio.h>

#include "report/heat.h"
#include "report/section.h"

static double cell_ratio(const void *arg, size_t row, size_t col)
{
    const struct page *p = arg;
    const double *cell = p->cell + 2 * (col * p->layers + row);

    return loss_ratio(cell[0], cell[1]);
}

static void layer_label(const void *arg, size_t row, char label[LABEL_MAX])
{
    (void)arg;
    snprintf(label, LABEL_MAX, "%zu", row);
}

static void kind_label(const void *arg, size_t col, char label[LABEL_MAX])
{
    const struct page *p = arg;

    snprintf(label, LABEL_MAX, "%s", p->r->kind[col]);
}

static int loss_map(struct html *h, const struct page *p, struct err *e)
{
    const struct heat heat = { .rows = p->layers,
                               .cols = p->r->kinds,
                               .row_name = "layer",
                               .col_name = "module",
                               .unit = "of the loss of round-to-nearest",
                               .value = cell_ratio,
                               .row_label = layer_label,
                               .col_label = kind_label,
                               .arg = p };

    html_put(h,
             "<h3>Beside round-to-nearest</h3>\n<p class=\"note\">Loss of "
             "each kind of linear layer in each decoder layer, as a share of "
             "what rounding to nearest would lose: fainter is better.</p>\n");
    return chart_heat(h, &heat, e);
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
                               .x_name = "layer",
                               .y_name =
                                   "loss, in squares of the outputs' unit",
                               .value = layer_loss,
                               .text = text_plain,
                               .arg = p };

    html_put(h, "<h3>Layer by layer</h3>\n<p class=\"note\">Twice the squared "
                "error of the outputs, mean over the calibration tokens, sum "
                "over all linear layers of a decoder layer.</p>\n");
    chart_bars(h, &bars);
}

int page_losses(struct html *h, const struct page *p, struct err *e)
{
    if (!p->has_loss)
        return page_modules(h, p, e);
    html_put(h,
             "<section id=\"loss\"><h2>Loss</h2>\n<p class=\"note\">How far "
             "a linear layer's outputs on the calibration text are from "
             "their target, (w \xe2\x88\x92 q) H (w \xe2\x88\x92 q)"
             "\xe1\xb5\x80%s.</p>\n",
             !p->compared ? "" :
             p->plain ? "; the same target and H for rounding to nearest and "
                        "plain GPTQ, on grids fixed beforehand" :
                        "");
    if (loss_map(h, p, e) < 0)
        return e->code;
    loss_bars(h, p);
    html_put(h, "</section>\n");
    return page_modules(h, p, e);
}
