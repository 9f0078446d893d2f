/* stops.c - see stops.h. */
#include "forge/stops.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gptq/solve/solve_cost.h"
#include "gptq/solve/solve_kernel.h"

/* What the linears of a layer read, by stop. */
struct inputs {
    const struct job *j;
    const struct model_config *c;
    struct grid_rules grids;
    struct stop at[IN_COUNT];
    int64_t tiles[IN_COUNT]; /* of 48 rows of modules, or whole ones */
    int64_t expert;          /* the last one; -1: none yet */
};

enum input_class stop_of(enum input_class in)
{
    return in == IN_EXPERT ? IN_EXPERT_MID : in;
}

bool stop_of_experts(const struct stop *s)
{
    return !strcmp(s->point, stop_point(IN_EXPERT_MID));
}

const char *stop_point(enum input_class in)
{
    return in == IN_EXPERT_MID ? "experts" : input_class_name(in);
}

bool stop_keeps_whole(const struct job *j, const struct linear *l)
{
    bool together = l->input == IN_ATTN_OUT || l->input == IN_MLP_MID ||
                    l->part == PART_K || l->part == PART_V ||
                    l->part == PART_KV_A;

    return *j->gpu || (j->fisher && together);
}

/* Bytes and operations a token of an input's moments: H, and its cross moment with
 * y[cross]; cross 0: none. */
static uint64_t moment_bytes(uint64_t cols, uint64_t cross)
{
    return 4 * (cols * (cols + 1) / 2 + cross * cols);
}

static double moment_flops(uint64_t cols, uint64_t cross)
{
    return (double)cols * (double)(cols + 2 * cross);
}

/* Experts' gate and up share their rows: counted with gate. */
static void add_expert(struct inputs *x, struct stop *s, const struct linear *l,
                       const struct solve_cost *cost)
{
    bool both = x->j->propagate == PROPAGATE_BOTH;
    double tokens = (double)x->j->sequences * (double)x->j->seqlen;
    double share = (double)x->c->moe.top_k / (double)x->c->moe.n_experts;
    uint64_t cols = (uint64_t)l->cols;
    uint64_t cross = both ? (uint64_t)x->c->hidden_size : 0;

    s->experts += l->expert != x->expert;
    x->expert = l->expert;
    if (l->part == PART_UP)
        return;
    if (x->j->propagate == PROPAGATE_ORIGINAL) /* else add_expert_states() */
        s->rows += (uint64_t)(tokens * share * 2 * (double)(cols + cross));
    s->whole += moment_bytes(cols, cross);
    s->share_sums += share * moment_flops(cols, cross);
    s->solve += solve_cost_input(cost, (double)cols);
    s->expert_factors += solve_cost_input(cost, (double)cols);
}

static void add_linear(struct inputs *x, const struct linear *l)
{
    const struct job *j = x->j;
    enum input_class in = stop_of(l->input);
    struct stop *s = &x->at[in];
    bool both = j->propagate == PROPAGATE_BOTH;
    bool output = l->input == IN_ATTN_OUT || l->input == IN_MLP_MID;
    uint64_t rows = (uint64_t)l->rows, cols = (uint64_t)l->cols;
    double flops = 2 * (double)rows * (double)cols;
    const struct module_grid g = grid_rules_find(&x->grids, l->module);
    const struct solve_cost cost = { (enum effort)j->effort, g.group,
                                     g.symmetric, both };

    s->codes +=
        rows * cols * (unsigned)g.bits / 8 + rows * (cols / g.group + 1) * 4;
    s->weights += rows * cols * (both ? 4 : 2);
    s->solve += solve_cost_linear(&cost, (double)rows, (double)cols);
    if (l->expert < 0) {
        bool whole = stop_keeps_whole(j, l);

        s->modules++;
        s->solve_modules +=
            solve_cost_linear(&cost, (double)rows, (double)cols);
        x->tiles[in] += whole ? 1 : (l->rows + SOLVE_ROWS - 1) / SOLVE_ROWS;
    }
    if (l->expert >= 0) {
        /* the reference's routing, and the quantized model's */
        double share = (double)x->c->moe.top_k / (double)x->c->moe.n_experts;

        s->forward += flops * (both ? 3 : 1) * share;
        s->expert_forward += flops * (both ? 3 : 1) * share;
        s->expert_weights += rows * cols * (both ? 4 : 2);
        add_expert(x, s, l, &cost);
    } else {
        uint64_t cross = output ? (uint64_t)x->c->hidden_size : cols;

        cross = both ? cross : 0;
        s->forward += flops * (both ? 2 : 1);
        s->whole += moment_bytes(cols, cross) - s->moments;
        s->moments = moment_bytes(cols, cross);
        s->by_rows = output ? 4 * cross * cols : 0;
        s->sums = moment_flops(cols, cross);
        s->factor = solve_cost_input(&cost, (double)cols);
    }
}

static int append(struct stops *to, const struct stop *s, struct err *e)
{
    if (mem_grow(&to->stop, (to->n + 1) * sizeof(*s), "stops", e) < 0)
        return e->code;
    to->stop[to->n++] = *s;
    return 0;
}

/* What parts publish for the experts' shares: of each token, in both streams, the
 * residual stream, the experts' input and the router's choice; what these publish for
 * parts: the output of each choice; and the Hessian that experts' are blended with, where
 * no other stop has it. */
static void add_expert_states(struct inputs *x, bool last)
{
    double tokens = (double)x->j->sequences * (double)x->j->seqlen;
    double streams = x->j->propagate == PROPAGATE_BOTH ? 2 : 1;
    double width = (double)x->c->hidden_size, k = (double)x->c->moe.top_k;
    struct stop *s = &x->at[IN_EXPERT_MID];

    if (!s->experts)
        return;
    s->rows = (uint64_t)(tokens * streams * (2 * 2 * width + 12 * k));
    s->outputs = last ? 0 : (uint64_t)(tokens * streams * 2 * k * width);
    if (!x->at[IN_MLP].modules) {
        s->moments = moment_bytes((uint64_t)width, 0);
        s->sums = moment_flops((uint64_t)width, 0);
    }
}

/* One stop for all points of the layer. */
static void unite(struct inputs *x)
{
    struct stop *to = &x->at[0];

    for (int i = 1; i < IN_COUNT; i++) {
        struct stop *s = &x->at[i];

        x->tiles[0] += x->tiles[i];
        to->modules += s->modules;
        to->experts += s->experts;
        to->moments += s->moments;
        to->rows += s->rows;
        to->codes += s->codes;
        to->whole += s->whole;
        to->forward += s->forward;
        to->sums += s->sums;
        to->share_sums += s->share_sums;
        to->factor += s->factor;
        to->solve += s->solve;
        to->solve_modules += s->solve_modules;
        to->expert_factors += s->expert_factors;
        to->expert_forward += s->expert_forward;
        to->expert_weights += s->expert_weights;
        to->weights += s->weights;
        s->modules = s->experts = 0;
    }
}

/* What a share costs to start.  On the cores of one machine, which each share has
 * all of, shares gain nothing. */
static double start_cost(const struct job *j)
{
    enum { AWAY = 20 }; /* 0.1 s of a core at level amx */
    bool gains = j->away || *j->gpu;

    return 1e9 * (double)(j->step != STEP_COST_AUTO ? j->step :
                          gains                     ? AWAY :
                                                      STEP_COST_MAX);
}

/* At most `most` shares of work, each of which has a quarter of what it costs in any
 * case. */
static int64_t worth(double work, double any, int64_t most)
{
    double n = 4 * work / any;

    return n < 1 ? 1 : n < (double)most ? (int64_t)n : most;
}

/* Whether shares read less, by so much that it takes longer than a step more: 1 GB, with
 * 10e9 multiply-adds; what each has to read then is all moments once. */
static bool worth_merging(const struct job *j, const struct stop *s)
{
    enum { A_BYTE = 10 };

    return j->propagate != PROPAGATE_ORIGINAL &&
           A_BYTE * (double)s->moments * (double)(j->parts - 1) > start_cost(j);
}

/* Each share makes the factor of H for itself. */
static void set_shares(const struct inputs *x, enum input_class in,
                       struct stop *s)
{
    int64_t parts = x->j->parts, units = x->tiles[in] + s->experts;
    double any = s->factor + start_cost(x->j);

    units = units < parts ? units : parts;
    s->shares = worth(s->solve, any, units);
    s->pieces = worth_merging(x->j, s) ? parts : 0;
    s->spread = worth(s->solve_modules, any,
                      x->tiles[in] < s->shares ? x->tiles[in] : s->shares);
}

static int add_layer(struct stops *to, const struct job *j,
                     const struct model_config *c, int64_t layer, struct err *e)
{
    static const enum input_class order[] = { IN_ATTN,      IN_Q_LAT,
                                              IN_KV_LAT,    IN_ATTN_OUT,
                                              IN_MLP,       IN_MLP_MID,
                                              IN_EXPERT_MID };
    const struct module_choice choice = job_choice(j);
    struct inputs x = { .j = j, .c = c, .grids = job_grids(j), .expert = -1 };
    bool all = j->propagate == PROPAGATE_ORIGINAL;

    for (int64_t i = 0; i < model_linear_count(c, layer); i++) {
        struct linear l;

        model_linear(c, layer, i, &l);
        if (module_chosen(&choice, l.module))
            add_linear(&x, &l);
    }
    if (all)
        unite(&x);
    else
        add_expert_states(&x, layer + 1 == c->n_layers);
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        struct stop *s = &x.at[order[i]];

        if (!s->modules && !s->experts)
            continue;
        s->layer = layer;
        s->units = x.tiles[order[i]];
        set_shares(&x, order[i], s);
        snprintf(s->point, sizeof(s->point), "%s",
                 all ? "all" : stop_point(order[i]));
        if (append(to, s, e) < 0)
            return e->code;
    }
    return 0;
}

int stops_list(struct stops *s, const struct job *j, struct err *e)
{
    struct model_config c;
    int rc = job_config(j, &c, e);

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
    static const struct {
        const char *begin, *unit;
    } names[] = {
        [STOP_MOMENTS] = { "moments", "part" },
        [STOP_STATES] = { "states", "part" },
        [STOP_CODES] = { "codes", "share" },
        [STOP_OUTPUTS] = { "outputs", "share" },
        [STOP_MERGED] = { "merged", "piece" },
    };
    char of[24] = "";

    if (which == STOP_CODES || which == STOP_OUTPUTS)
        snprintf(of, sizeof(of), "-of-%" PRId64, s->shares);
    snprintf(to, STOP_FILE, "%s-%" PRId64 "-%s.%s-%" PRId64 "%s.fts",
             names[which].begin, s->layer, s->point, names[which].unit, number,
             of);
    return to;
}

void stops_release(struct stops *s)
{
    free(s->stop);
    *s = (struct stops){ 0 };
}

uint64_t stops_layer_bytes(const struct stops *s, int64_t parts,
                           uint64_t *whole)
{
    uint64_t most = 0, sum = 0, all = 0;

    *whole = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct stop *p = &s->stop[i];

        if (i && p->layer != p[-1].layer)
            sum = all = 0;
        sum += p->moments * (uint64_t)(parts + (p->pieces > 0)) + p->rows +
               p->outputs + p->codes;
        all += p->whole + p->codes;
        if (sum > most) {
            most = sum;
            *whole = all;
        }
    }
    return most;
}

uint64_t stops_kept_bytes(const struct stops *s)
{
    uint64_t most = 0;

    for (size_t i = 0; i < s->n; i++)
        if (stop_of_experts(&s->stop[i]) &&
            s->stop[i].rows + s->stop[i].outputs > most)
            most = s->stop[i].rows + s->stop[i].outputs;
    return most;
}

void stops_layer_steps(const struct stops *s, int64_t parts, int64_t steps[3])
{
    int64_t here[3] = { 0 };

    memset(steps, 0, sizeof(here));
    for (size_t i = 0; i < s->n; i++) {
        if (i && s->stop[i].layer != s->stop[i - 1].layer)
            memset(here, 0, sizeof(here));
        here[0] += parts;
        here[1] += s->stop[i].shares;
        here[2] += s->stop[i].pieces;
        if (here[0] + here[1] + here[2] > steps[0] + steps[1] + steps[2])
            memcpy(steps, here, sizeof(here));
    }
}

size_t stops_find(const struct stops *s, int64_t layer, const char *point)
{
    size_t i = 0;

    while (i < s->n &&
           (s->stop[i].layer != layer || strcmp(s->stop[i].point, point) != 0))
        i++;
    return i;
}
