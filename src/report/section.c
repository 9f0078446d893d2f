/* section.c - see section.h: sums over a run's records. */
#include "report/section.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

size_t page_step(struct page *p, const char *name)
{
    size_t i = 0;

    while (i < p->steps && strcmp(p->step_name[i], name) != 0)
        i++;
    if (i == p->steps && p->steps < STEP_NAMES)
        p->step_name[p->steps++] = name;
    return i;
}

static void sum_modules(struct page *p)
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
            p->compared = p->compared_name;
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

int page_open(struct page *p, const struct workdir *w,
              const struct page_params *params, struct err *e)
{
    size_t n = (size_t)w->layers, kinds = w->records.kinds;
    char name[64] = "plain GPTQ";

    *p = (struct page){
        .w = w, .r = &w->records, .params = params, .layers = n
    };
    p->plain = !params->compared;
    p->loss = mem_zero(n ? n : 1, 3 * sizeof(double), "report", e);
    p->cell =
        mem_zero(n && kinds ? n * kinds : 1, 2 * sizeof(double), "report", e);
    p->layer_second =
        mem_zero(n ? n : 1, STEP_NAMES * sizeof(double), "report", e);
    if (!p->loss || !p->cell || !p->layer_second)
        return e->code;
    if (params->compared)
        path_title(name, sizeof(name), params->compared);
    snprintf(p->compared_name, sizeof(p->compared_name), "%s", name);
    path_title(p->model, sizeof(p->model), page_text(p, "model"));
    if (params->title)
        snprintf(p->model, sizeof(p->model), "%s", params->title);
    sum_modules(p);
    sum_seconds(p);
    return 0;
}

void page_close(struct page *p)
{
    free(p->loss);
    free(p->cell);
    free(p->layer_second);
}

/* ---- facts as text ---- */

const char *const page_peer_class[PEER_CLASSES] = { "rtn", "gptq", "p2",
                                                    "p3",  "p4",   "p5" };

const char *page_text(const struct page *p, const char *name)
{
    return settings_text(&p->w->run, name);
}

long long page_number(const struct page *p, const char *name)
{
    return settings_number(&p->w->run, name, 0);
}

void page_method(const struct page *p, char to[LABEL_MAX])
{
    const char *method = page_text(p, "method");
    const char *effort = strcmp(method, "rtn") ? page_text(p, "effort") : "";

    snprintf(to, LABEL_MAX, "%.40s%s%.40s", method, *effort ? ", effort " : "",
             effort);
}

double page_loss_sum(const struct page *p, size_t series)
{
    double sum = 0;

    for (size_t i = 0; i < p->layers; i++)
        sum += p->loss[3 * i + series];
    return sum;
}

const char *page_date(const struct page *p, char to[32])
{
    time_t t = (time_t)page_number(p, "started");
    struct tm tm;

    *to = 0;
    if (t > 0 && gmtime_r(&t, &tm))
        strftime(to, 32, "%Y-%m-%d %H:%M UTC", &tm);
    return to;
}

void page_shell_word(char *to, size_t cap, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789-_=.,:/+%@";
    size_t n = 1;

    if (*word && !word[strspn(word, plain)]) {
        snprintf(to, cap, "%s", word);
        return;
    }
    to[0] = '\'';
    for (; *word && n + 6 < cap; word++) {
        if (*word == '\'')
            n += (size_t)snprintf(to + n, cap - n, "'\\''");
        else
            to[n++] = *word;
    }
    snprintf(to + n, cap - n, "'");
}

void page_number_cell(struct html *h, const char *class, label_text *text,
                      double v)
{
    char label[LABEL_MAX] = "\xe2\x80\x93";

    if (isfinite(v))
        text(v, label);
    html_put(h, "<td class=\"n%s\">%s</td>", class, label);
}

void page_number_head(struct html *h, const char *class, const char *text)
{
    html_put(h, "<th class=\"n%s\">%s</th>", class, text);
}
