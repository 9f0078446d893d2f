/* stop_rows.c - see stop_rows.h. */
#include "forge/stop_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "gptq/solve/solve_kernel.h"

/* A walk over the units of a stop, tiles of rows and whole linears, which are given to
 * shares in turn. */
struct walk {
    const struct stop *s;
    const struct job *j;
    const struct model_config *c;
    struct module_choice choice;
    int64_t units;
    uint64_t total;   /* rows * cols * cols of all units */
    int64_t unit, to; /* the next unit's number; the share of the last */
    uint64_t before;  /* rows * cols * cols of the units before */
};

static bool is_here(const struct walk *w, const struct linear *l)
{
    return l->expert < 0 && module_chosen(&w->choice, l->module) &&
           (!strcmp(w->s->point, "all") ||
            !strcmp(w->s->point, stop_point(stop_of(l->input))));
}

static int64_t unit_rows(const struct walk *w, const struct linear *l)
{
    return stop_keeps_whole(w->j, l) || l->rows < SOLVE_ROWS ? l->rows :
                                                               SOLVE_ROWS;
}

static void count(struct walk *w)
{
    int64_t n = model_linear_common(w->c, w->s->layer);
    struct linear l;

    for (int64_t i = 0; i < n; i++) {
        model_linear(w->c, w->s->layer, i, &l);
        if (!is_here(w, &l))
            continue;
        w->units += (l.rows + unit_rows(w, &l) - 1) / unit_rows(w, &l);
        w->total += (uint64_t)l.rows * (uint64_t)l.cols * (uint64_t)l.cols;
    }
}

/* The share of the next unit: where its middle lies among all multiply-adds, but no
 * share is left out. */
static int64_t next_share(struct walk *w, uint64_t cost)
{
    int64_t spread = w->s->spread, left = w->units - w->unit;
    int64_t k =
        (int64_t)((2 * w->before + cost) * (uint64_t)spread / (2 * w->total));

    k = k > spread - left ? k : spread - left;
    k = k < w->to + 1 ? k : w->to + 1;
    w->before += cost;
    w->unit++;
    return w->to = k;
}

/* Append the rows of l that are share's, if any; STOP_DIVIDED: l, if it is. */
static int add_linear(struct walk *w, const struct linear *l, int64_t share,
                      char **list, struct err *e)
{
    struct name_rows r = { .of = (uint64_t)l->rows };
    uint64_t cols = (uint64_t)l->cols, step = (uint64_t)unit_rows(w, l);
    size_t have = strlen(*list);
    char name[TENSOR_NAME_MAX];
    int64_t first = -1;

    for (uint64_t row = 0; row < r.of; row += step) {
        uint64_t end = row + step < r.of ? row + step : r.of;
        int64_t k = next_share(w, (end - row) * cols * cols);

        first = row ? first : k;
        if (k != share && share != STOP_DIVIDED)
            continue;
        r.first = r.end ? r.first : row;
        r.end = end;
    }
    if (!r.end || (share == STOP_DIVIDED && w->to == first))
        return 0;
    if (r.end - r.first < r.of)
        name_rows_format(l->module, &r, name);
    else
        strcpy(name, l->module);
    if (mem_grow(list, have + strlen(name) + 2, "rows", e) < 0)
        return e->code;
    sprintf(*list + have, "%s%s", have ? "," : "", name);
    return 0;
}

int stop_rows(const struct stop *s, const struct job *j, int64_t share,
              char **list, struct err *e)
{
    struct walk w = { .s = s, .j = j, .choice = job_choice(j), .to = -1 };
    struct model_config c;
    int rc = job_config(j, &c, e);

    *list = NULL;
    if (rc < 0)
        return rc;
    w.c = &c;
    count(&w);
    *list = mem_zero(1, 1, "rows", e);
    rc = *list ? 0 : e->code;
    for (int64_t i = 0; i < model_linear_common(&c, s->layer) && !rc; i++) {
        struct linear l;

        model_linear(&c, s->layer, i, &l);
        if (is_here(&w, &l))
            rc = add_linear(&w, &l, share, list, e);
    }
    model_config_release(&c);
    if (rc < 0) {
        free(*list);
        *list = NULL;
    }
    return rc;
}
