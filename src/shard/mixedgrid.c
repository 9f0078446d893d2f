/* mixedgrid.c - see mixedgrid.h. */
#include "shard/mixedgrid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The linears of one kind, "self_attn.q_proj" or "mlp.experts", in all layers. */
struct everywhere {
    struct names kind;
    struct module_grid *grid; /* of the first one */
    bool *alike;              /* of all layers */
};

/* to: the path of a linear, or that of all experts of its layer; layer -1: its
 * path inside of the layer. */
static void path_of(const struct linear *l, int64_t layer,
                    char to[TENSOR_NAME_MAX])
{
    struct tensor_name n;

    tensor_name_parse(&n, l->module);
    n.layer = layer;
    if (n.expert >= 0) { /* loaders take all of them for one matrix */
        n.expert = -1;
        n.part = n.experts;
    }
    tensor_name_format(&n, to, TENSOR_NAME_MAX);
}

static bool usual(const struct mixed_grids *m, const struct run_facts *f,
                  struct module_grid g)
{
    return module_grid_same(
        g, (struct module_grid){ m->group, f->symmetric, f->bits });
}

static bool is_gptq(const struct run_facts *f)
{
    return f->layout == LAYOUT_GPTQ || f->layout == LAYOUT_GPTQ_V2;
}

/* Whether the config can say of linears that they have one group of all inputs. */
static bool says_whole(const struct run_facts *f)
{
    return is_gptq(f) || f->layout == LAYOUT_CT || f->layout == LAYOUT_AWQ;
}

/* The grid as the config tells it: loaders take -1 (compressed-tensors: a strategy)
 * for all inputs, but of their numbers only some. */
static void tell(const struct mixed_grids *m, const struct run_facts *f,
                 const struct linear *l, struct module_grid *g)
{
    if (says_whole(f) && (uint64_t)l->cols <= g->group &&
        (m->group == GROUP_WHOLE ||
         (g->group != m->group && !layout_marlin_group(g->group))))
        g->group = GROUP_WHOLE;
}

/* What the config says of most: GROUP_WHOLE if all linears have one group; or if
 * those with the group of the facts have, and loaders take no such number.  AWQ's
 * config has one word for all. */
static uint64_t group_of_most(const struct named_set *out,
                              const struct model_config *config,
                              const struct run_facts *f)
{
    bool all = says_whole(f);
    bool most =
        all && f->layout != LAYOUT_AWQ && !layout_marlin_group(f->group);
    struct packed_walk w = { .out = out, .config = config, .facts = f };

    while (packed_next(&w)) {
        if ((uint64_t)w.l.cols <= w.grid.group)
            continue;
        all = false;
        most &= w.grid.group != f->group;
    }
    if (all && !is_gptq(f)) /* the number will do where it is one */
        all = f->mixed || !layout_marlin_group(f->group);
    return all || most ? GROUP_WHOLE : f->group;
}

static int compare_layers(struct everywhere *w, const struct linear *l,
                          struct module_grid g, struct err *e)
{
    char path[TENSOR_NAME_MAX];
    size_t i;

    path_of(l, -1, path);
    i = names_find(&w->kind, path);
    if (i < w->kind.n) {
        w->alike[i] &= module_grid_same(w->grid[i], g);
        return 0;
    }
    if (names_add(&w->kind, path, strlen(path), e) ||
        mem_grow(&w->grid, w->kind.n * sizeof(*w->grid), "grids", e) ||
        mem_grow(&w->alike, w->kind.n * sizeof(*w->alike), "grids", e))
        return e->code;
    w->grid[i] = g;
    w->alike[i] = true;
    return 0;
}

static int list(struct mixed_grids *m, const struct everywhere *w,
                const struct linear *l, struct module_grid g, struct err *e)
{
    char kind[TENSOR_NAME_MAX], path[TENSOR_NAME_MAX + 16];
    struct names *to;
    size_t i = 0;

    while (i < m->n && !module_grid_same(m->kind[i].grid, g))
        i++;
    if (i == MIXED_KINDS)
        return err_set(e, E_CONFIG, "'%s': more than %d kinds of grids",
                       l->module, MIXED_KINDS);
    if (i == m->n)
        m->kind[m->n++].grid = g;
    to = &m->kind[i].modules;
    path_of(l, -1, kind);
    path_of(l, l->layer, path);
    if (w->alike[names_find(&w->kind, kind)])
        snprintf(path, sizeof(path), "model.layers.*.%s", kind);
    return names_find(to, path) < to->n ? 0 :
                                          names_add(to, path, strlen(path), e);
}

/* Call compare_layers(), or with second list(), for each quantized linear. */
static int each(struct everywhere *w, struct mixed_grids *m, bool second,
                const struct named_set *out, const struct model_config *config,
                const struct run_facts *facts, struct err *e)
{
    struct packed_walk p = { .out = out, .config = config, .facts = facts };
    int rc = 0;

    while (!rc && packed_next(&p)) {
        tell(m, facts, &p.l, &p.grid);
        if (!second)
            rc = compare_layers(w, &p.l, p.grid, e);
        else if (!usual(m, facts, p.grid))
            rc = list(m, w, &p.l, p.grid, e);
    }
    return rc;
}

int mixed_collect(struct mixed_grids *m, const struct named_set *out,
                  const struct model_config *config,
                  const struct run_facts *facts, struct err *e)
{
    struct everywhere w = { 0 };
    int rc;

    *m = (struct mixed_grids){ .group = group_of_most(out, config, facts) };
    if (!facts->mixed)
        return 0;
    rc = each(&w, m, false, out, config, facts, e);
    if (!rc)
        rc = each(&w, m, true, out, config, facts, e);
    names_release(&w.kind);
    free(w.grid);
    free(w.alike);
    return rc;
}

void mixed_release(struct mixed_grids *m)
{
    for (size_t i = 0; i < m->n; i++)
        names_release(&m->kind[i].modules);
    m->n = 0;
}
