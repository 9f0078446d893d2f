/* units.c - see units.h. */
#include "gptq/bits/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/choice.h"

/* The unit of a linear, if one of those before has it; else u->n. */
static size_t find_unit(const struct bits_units *u, const struct linear *l)
{
    enum fused kind = linear_fused(l);

    for (size_t i = u->n; i-- > 0;) {
        const struct linear *k = &u->module[u->last[i]].l;

        if (k->layer != l->layer)
            break;
        if (kind != FUSED_NONE && linear_fused(k) == kind)
            return i;
    }
    return u->n;
}

int bits_units_add(struct bits_units *u, const struct bits_module *m,
                   struct err *e)
{
    size_t unit;

    if (mem_grow(&u->module, (u->modules + 1) * sizeof(*m), "modules", e) < 0 ||
        mem_grow(&u->unit, (u->n + 1) * sizeof(*u->unit), "units", e) < 0 ||
        mem_grow(&u->last, (u->n + 1) * sizeof(*u->last), "units", e) < 0)
        return e->code;
    u->module[u->modules] = *m;
    if (!m->chosen) {
        u->modules++;
        return 0;
    }
    unit = find_unit(u, &m->l);
    if (unit == u->n)
        u->unit[u->n++] = (struct bits_unit){ 0 };
    u->last[unit] = u->modules;
    u->module[u->modules++].unit = unit;
    u->weights += (double)m->l.rows * (double)m->l.cols;
    return 0;
}

void bits_units_release(struct bits_units *u)
{
    free(u->module);
    free(u->unit);
    free(u->last);
}

/* ---- costs ---- */

/* Whether what `of` puts out is a factor of a product whose importance `by`
 * tells. */
static bool stands_for(const struct linear *by, const struct linear *of)
{
    if (by->layer != of->layer || by->expert != of->expert)
        return false;
    switch (of->part) {
    case PART_GATE:
    case PART_UP:
    case PART_GATE_UP: return by->part == PART_DOWN;
    case PART_Q:
    case PART_Q_A:
    case PART_Q_B:
    case PART_KV_B: return by->part == PART_K || by->part == PART_KV_A;
    default: return by->part == PART_O;
    }
}

/* The linears of a layer are neighbours, in any order. */
static const struct bits_module *find_known(const struct bits_units *u,
                                            size_t at)
{
    const struct linear *l = &u->module[at].l;

    for (size_t i = at; i < u->modules && u->module[i].l.layer == l->layer; i++)
        if (u->module[i].known && stands_for(&u->module[i].l, l))
            return &u->module[i];
    for (size_t i = at; i-- > 0 && u->module[i].l.layer == l->layer;)
        if (u->module[i].known && stands_for(&u->module[i].l, l))
            return &u->module[i];
    return NULL;
}

/* *factor: what errors.plain.error is multiplied by, to be a cost. */
static int importance(const struct bits_units *u, size_t at, double *factor,
                      struct err *e)
{
    const struct bits_module *m = &u->module[at], *by;
    const struct moe *moe = &u->config->moe;
    double power = m->errors.plain.power, weight = 1;

    *factor = 0;
    if (!(power > 0))
        return 0; /* its errors are 0, too */
    if (m->l.expert >= 0 && moe->top_k > 0) {
        weight = moe->scale / (double)moe->top_k;
        weight = m->share * weight * weight;
    }
    by = m->known ? m : find_known(u, at);
    if (u->fisher && !by)
        return err_set(e, E_DATA, "'%s': there are no gradients for it",
                       m->l.module);
    *factor = u->fisher ? weight * by->errors.fisher.power / 8 / power :
                          m->share / power;
    return 0;
}

static int add_costs(struct bits_units *u, size_t at, struct err *e)
{
    const struct bits_module *m = &u->module[at];
    struct bits_unit *to = &u->unit[m->unit];
    const struct bits_sums *s = &m->errors.plain;
    double factor = 1.0 / 8;

    if (m->known && m->l.expert < 0) {
        s = &m->errors.fisher;
    } else if (importance(u, at, &factor, e) < 0) {
        return e->code;
    }
    for (int i = 0; i < u->grids.n; i++) {
        to->cost[i] += s->error[i] > 0 ? factor * s->error[i] : 0;
        to->bits[i] += bits_taken(u->grids.grid[i], (uint64_t)m->l.rows,
                                  (uint64_t)m->l.cols);
    }
    return 0;
}

int bits_units_cost(struct bits_units *u, struct err *e)
{
    for (size_t i = 0; i < u->modules; i++)
        if (u->module[i].chosen && add_costs(u, i, e) < 0)
            return e->code;
    return 0;
}

void bits_units_sum(const struct bits_units *u, int grid, double *bits,
                    double *cost)
{
    *bits = *cost = 0;
    for (size_t i = 0; i < u->n; i++) {
        int k = grid < 0 ? u->unit[i].chosen : grid;

        *bits += u->unit[i].bits[k];
        *cost += u->unit[i].cost[k];
    }
}

/* ---- rules ---- */

struct rule {
    int64_t layer;
    int grid;
    char part[MODULE_PATH_MAX]; /* behind the layer; of experts "PREFIX.*" */
};

static int by_part(const void *a, const void *b)
{
    const struct rule *x = a, *y = b;
    int d = strcmp(x->part, y->part);

    if (d)
        return d;
    if (x->grid != y->grid)
        return x->grid - y->grid;
    return (x->layer > y->layer) - (x->layer < y->layer);
}

/* The rules of all modules whose grid is not the default, those of experts once a
 * layer; sorted. */
static int list(const struct bits_units *u, struct rule **to, size_t *n,
                struct err *e)
{
    *n = 0;
    *to = mem_alloc((u->modules + 1) * sizeof(**to), "rules", e);
    if (!*to)
        return e->code;
    for (size_t i = 0; i < u->modules; i++) {
        const struct bits_module *m = &u->module[i];
        struct rule *r = &(*to)[*n];
        struct tensor_name name;

        if (!m->chosen)
            continue;
        r->grid = u->unit[m->unit].chosen;
        r->layer = m->l.layer;
        if (!r->grid || (m->l.expert >= 0 && i != u->last[m->unit]))
            continue;
        tensor_name_parse(&name, m->l.module);
        if (m->l.expert >= 0)
            snprintf(r->part, sizeof(r->part), "%.*s.*", (int)name.experts.len,
                     name.experts.at);
        else
            snprintf(r->part, sizeof(r->part), "%.*s", (int)name.part.len,
                     name.part.at);
        ++*n;
    }
    qsort(*to, *n, sizeof(**to), by_part);
    return 0;
}

/* Print the layers of r[n] that have the same tens, as a glob; returns their
 * number. */
static size_t print_layers(FILE *out, const struct rule *r, size_t n)
{
    int64_t tens = r->layer / 10;
    size_t k = 1;

    while (k < n && r[k].layer / 10 == tens && r[k].grid == r->grid &&
           !strcmp(r[k].part, r->part))
        k++;
    fprintf(out, "model.layers.");
    if (tens)
        fprintf(out, "%" PRId64, tens);
    if (k > 1)
        fputc('[', out);
    for (size_t i = 0; i < k; i++)
        fprintf(out, "%" PRId64, r[i].layer % 10);
    if (k > 1)
        fputc(']', out);
    fprintf(out, ".%s=", r->part);
    return k;
}

static void print_grid(FILE *out, struct module_grid g, struct module_grid most)
{
    const char *comma = "";

    if (g.group != most.group)
        fprintf(out, "%" PRIu64, g.group), comma = ",";
    if (g.symmetric != most.symmetric)
        fprintf(out, "%s%s", comma, g.symmetric ? "sym" : "asym"), comma = ",";
    if (g.bits != most.bits)
        fprintf(out, "%s%dbit", comma, g.bits);
    fputc('\n', out);
}

int bits_units_rules(const struct bits_units *u, char **text, struct err *e)
{
    struct rule *rule;
    size_t n, len;
    FILE *out;

    if (list(u, &rule, &n, e) < 0)
        return e->code;
    out = open_memstream(text, &len);
    for (size_t i = 0; out && i < n;) {
        size_t k = print_layers(out, rule + i, n - i);

        print_grid(out, u->grids.grid[rule[i].grid], u->grids.grid[0]);
        i += k;
    }
    free(rule);
    if (!out || fclose(out))
        return err_set(e, E_TEMP, "rules: out of memory");
    return 0;
}
