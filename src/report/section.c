/* section.c - see section.h: sums over a run's records. */
#include "report/section.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t page_step(struct page *p, const char *name)
{
    size_t i = 0;

    while (i < p->steps && strcmp(p->step_name[i], name) != 0)
        i++;
    if (i == p->steps && p->steps < STEP_NAMES)
        p->step_name[p->steps++] = name;
    return i;
}

static void sum_modules(struct page *p, const char *name)
{
    for (size_t i = 0; i < p->r->modules; i++) {
        const struct module *m = &p->r->module[i];
        double *cell, *loss;

        if (m->layer < 0 || (size_t)m->layer >= p->layers || isnan(m->loss) ||
            isnan(m->loss_rtn))
            continue;
        cell = p->cell + 2 * (m->kind * p->layers + (size_t)m->layer);
        loss = p->loss + 3 * m->layer;
        cell[0] += m->loss;
        cell[1] += m->loss_rtn;
        loss[0] += m->loss_rtn;
        loss[1] += isnan(m->loss_compared) ? 0 : m->loss_compared;
        loss[2] += m->loss;
        p->has_loss = true;
        if (!isnan(m->loss_compared))
            p->compared = name;
    }
}

/* Without records of steps: the seconds of solving the modules. */
static void sum_seconds(struct page *p)
{
    for (size_t i = 0; i < p->r->steps; i++) {
        const struct step *s = &p->r->step[i];

        if (s->layer < 0 || (size_t)s->layer >= p->layers)
            continue;
        size_t k = page_step(p, s->name);
        if (k < STEP_NAMES)
            p->layer_second[(size_t)s->layer * STEP_NAMES + k] += s->seconds;
    }
    p->solving_alone = p->steps == 0;
    for (size_t i = 0; p->solving_alone && i < p->r->modules; i++) {
        const struct module *m = &p->r->module[i];

        if (m->layer >= 0 && (size_t)m->layer < p->layers && m->seconds >= 0)
            p->layer_second[(size_t)m->layer * STEP_NAMES +
                            page_step(p, "solving")] += m->seconds;
    }
}

int page_open(struct page *p, const struct workdir *w, const char *compared,
              struct err *e)
{
    size_t n = (size_t)w->layers, kinds = w->records.kinds;

    *p = (struct page){ .w = w, .r = &w->records, .layers = n };
    p->plain = !compared;
    p->loss = mem_zero(n ? n : 1, 3 * sizeof(double), "report", e);
    p->cell =
        mem_zero(n && kinds ? n * kinds : 1, 2 * sizeof(double), "report", e);
    p->layer_second =
        mem_zero(n ? n : 1, STEP_NAMES * sizeof(double), "report", e);
    if (!p->loss || !p->cell || !p->layer_second)
        return e->code;
    sum_modules(p, compared ? compared : "plain GPTQ");
    sum_seconds(p);
    return 0;
}

void page_close(struct page *p)
{
    free(p->loss);
    free(p->cell);
    free(p->layer_second);
}

const struct figures *page_figures(const struct page *p)
{
    const struct figures *last = NULL;

    for (size_t i = 0; i < p->r->n_figures; i++) {
        const struct figures *f = &p->r->figures[i];

        if (f->layer < 0 || (size_t)f->layer + 1 == p->layers)
            last = f;
    }
    return last;
}

void page_index_label(const void *arg, size_t i, char label[LABEL_MAX])
{
    (void)arg;
    snprintf(label, LABEL_MAX, "%zu", i);
}

void page_plain_text(double v, char label[LABEL_MAX])
{
    snprintf(label, LABEL_MAX, v >= 1e4 && v < 1e7 ? "%.0f" : "%.4g", v);
}
