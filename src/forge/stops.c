/* stops.c - see stops.h. */
#include "forge/stops.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the linears of a layer read, by stop. */
struct inputs {
    const struct job *j;
    const struct model_config *c;
    struct stop at[IN_COUNT];
    int64_t units[IN_COUNT]; /* modules, or experts, which a share has whole */
};

/* The stop at which linears of this input are solved. */
static enum input_class stop_of(enum input_class in)
{
    return in == IN_EXPERT ? IN_MLP : in;
}

static void add_linear(struct inputs *x, const struct linear *l)
{
    enum input_class in = stop_of(l->input);
    struct stop *s = &x->at[in];
    bool both = x->j->propagate == PROPAGATE_BOTH;
    double tokens = (double)x->j->sequences * (double)x->j->seqlen;
    uint64_t rows = (uint64_t)l->rows, cols = (uint64_t)l->cols;

    s->codes += rows * cols / 2 + rows * (cols / (uint64_t)x->j->group + 1) * 4;
    if (l->expert < 0) {
        bool output = l->input == IN_ATTN_OUT || l->input == IN_MLP_MID;
        uint64_t cross = output ? (uint64_t)x->c->hidden_size : cols;

        x->units[in]++;
        s->moments = 4 * (cols * (cols + 1) / 2 + (both ? cross * cols : 0));
    } else if (l->part != PART_UP) { /* gate and up share their rows */
        uint64_t row = 2 * (cols + (both ? (uint64_t)x->c->hidden_size : 0));

        x->units[in] += in == IN_EXPERT_MID || l->part == PART_GATE;
        s->rows += (uint64_t)(tokens * (double)x->c->moe.top_k /
                              (double)x->c->moe.n_experts * (double)row);
    }
}

static int append(struct stops *to, const struct stop *s, struct err *e)
{
    if (mem_grow(&to->stop, (to->n + 1) * sizeof(*s), "stops", e) < 0)
        return e->code;
    to->stop[to->n++] = *s;
    return 0;
}

/* One stop for all points of the layer. */
static void unite(struct inputs *x)
{
    for (int i = 1; i < IN_COUNT; i++) {
        x->units[0] += x->units[i];
        x->at[0].moments += x->at[i].moments;
        x->at[0].rows += x->at[i].rows;
        x->at[0].codes += x->at[i].codes;
        x->units[i] = 0;
    }
}

static int add_layer(struct stops *to, const struct job *j,
                     const struct model_config *c, int64_t layer, struct err *e)
{
    static const enum input_class order[] = {
        IN_ATTN, IN_Q_LAT, IN_ATTN_OUT, IN_MLP, IN_MLP_MID, IN_EXPERT_MID
    };
    const struct module_choice choice = job_choice(j);
    struct inputs x = { .j = j, .c = c };
    bool all = j->propagate == PROPAGATE_ORIGINAL;

    for (int64_t i = 0; i < model_linear_count(c, layer); i++) {
        struct linear l;

        model_linear(c, layer, i, &l);
        if (module_chosen(&choice, l.module))
            add_linear(&x, &l);
    }
    if (all)
        unite(&x);
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        struct stop *s = &x.at[order[i]];

        if (!x.units[order[i]])
            continue;
        s->layer = layer;
        s->shares = x.units[order[i]] < j->parts ? x.units[order[i]] : j->parts;
        snprintf(s->point, sizeof(s->point), "%s",
                 all                       ? "all" :
                 order[i] == IN_EXPERT_MID ? "experts" :
                                             input_class_name(order[i]));
        if (append(to, s, e) < 0)
            return e->code;
    }
    return 0;
}

int stops_list(struct stops *s, const struct job *j, struct err *e)
{
    struct model_config c;
    int rc = model_config_read(&c, j->model, e);

    *s = (struct stops){ 0 };
    if (rc < 0)
        return rc;
    for (int64_t i = 0; i < c.n_layers && rc >= 0; i++)
        rc = add_layer(s, j, &c, i, e);
    model_config_release(&c);
    if (rc < 0)
        stops_release(s);
    return rc;
}

const char *stop_file_name(const struct stop *s, enum stop_file which,
                           int64_t number, char to[STOP_FILE])
{
    static const char *const begin[] = { "moments", "states", "codes" };

    snprintf(to, STOP_FILE, "%s-%" PRId64 "-%s.%s-%" PRId64 ".fts",
             begin[which], s->layer, s->point,
             which == STOP_CODES ? "share" : "part", number);
    return to;
}

void stops_release(struct stops *s)
{
    free(s->stop);
    *s = (struct stops){ 0 };
}

uint64_t stops_layer_bytes(const struct stops *s, int64_t parts)
{
    uint64_t most = 0, sum = 0;

    for (size_t i = 0; i < s->n; i++) {
        const struct stop *p = &s->stop[i];

        if (i && p->layer != p[-1].layer)
            sum = 0;
        sum += p->moments * (uint64_t)parts + p->rows + p->codes;
        most = sum > most ? sum : most;
    }
    return most;
}

size_t stops_find(const struct stops *s, int64_t layer, const char *point)
{
    size_t i = 0;

    while (i < s->n &&
           (s->stop[i].layer != layer || strcmp(s->stop[i].point, point) != 0))
        i++;
    return i;
}
