/* preflight.c - see preflight.h. */
#include "pack/preflight.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/sidecar.h"
#include "common/math/quant.h"
#include "pack/parallel.h"

struct shapes {
    struct linear *linear;
    struct layout_shape *shape;
    size_t n;
};

static int collect(struct shapes *s, const struct model_config *c,
                   const struct module_choice *choice, struct err *e)
{
    size_t cap = 0, bytes;

    for (int64_t i = 0; i < c->n_layers; i++)
        cap += (size_t)model_linear_count(c, i); /* no overflow: each < 2^32 */
    if (size_mul(cap, sizeof(*s->linear), &bytes))
        return err_set(e, E_DATA, "%" PRId64 " layers are too many",
                       c->n_layers);
    s->linear = mem_alloc(bytes, "preflight", e);
    s->shape = mem_alloc(cap * sizeof(*s->shape), "preflight", e);
    if (!s->linear || !s->shape)
        return e->code;
    for (int64_t layer = 0; layer < c->n_layers; layer++)
        for (int64_t i = 0; i < model_linear_count(c, layer); i++) {
            model_linear(c, layer, i, &s->linear[s->n]);
            s->n += module_chosen(choice, s->linear[s->n].module);
        }
    for (size_t i = 0; i < s->n; i++)
        s->shape[i] = (struct layout_shape){ s->linear[i].module,
                                             (uint64_t)s->linear[i].rows,
                                             (uint64_t)s->linear[i].cols };
    return 0;
}

/* Whether linears of GPTQ differ in bits or group, which its config says as
 * "dynamic". */
static bool are_dynamic(const struct preflight *p, const struct shapes *s)
{
    struct module_grid first, g;
    bool differ = p->chooses, whole = true; /* one group for each row */

    if (p->layout != LAYOUT_GPTQ && p->layout != LAYOUT_GPTQ_V2)
        return false;
    for (size_t i = 0; i < s->n; i++)
        whole &= s->shape[i].cols <=
                 grid_rules_find(&p->grids, s->shape[i].module).group;
    for (size_t i = 0; i < s->n && !differ; i++) {
        g = grid_rules_find(&p->grids, s->shape[i].module);
        first = i ? first : g;
        differ = g.bits != first.bits || (g.group != first.group && !whole);
    }
    return differ;
}

/* Print each kind of advice once, with an example and the number of linears. */
static void advise(const struct preflight *p, const struct shapes *s)
{
    for (int b = 0; b < ADVICE_BITS; b++) {
        const struct layout_shape *first = NULL;
        uint64_t group = p->grids.group; /* the last one looked at */
        size_t count = 0;

        for (size_t i = 0; i < s->n; i++) {
            struct module_grid g =
                grid_rules_find(&p->grids, s->shape[i].module);

            group = g.group;
            if (layout_advice(p->layout, g.symmetric, g.group, &s->shape[i]) &
                1u << b) {
                if (!first)
                    first = &s->shape[i];
                count++;
            }
        }
        if (!first)
            continue;
        if ((1u << b) &
            (ADVICE_SHORT_GROUP | ADVICE_GPTQ_GROUP | ADVICE_MARLIN_SHAPE))
            warning("%s is %" PRIu64 " x %" PRIu64 ", group %" PRIu64
                    " (%zu such of %zu): %s",
                    first->module, first->rows, first->cols, group, count, s->n,
                    layout_advice_text(1u << b));
        else
            warning("%s", layout_advice_text(1u << b));
    }
    if (are_dynamic(p, s))
        warning("%s", layout_advice_text(ADVICE_DYNAMIC));
}

/* group: the first linear's, which s->shape begins with. */
static int check_shape(const struct preflight *p, const struct shapes *s,
                       size_t i, uint64_t group, struct err *e)
{
    const struct layout_shape *x = &s->shape[i];
    struct module_grid g = grid_rules_find(&p->grids, x->module);
    char a[GROUP_TEXT], b[GROUP_TEXT];

    if (layout_check_bits(p->layout, g.bits, x->module, e))
        return e->code;
    if (!layout_groups_agree(p->layout, g.group, x->cols, group,
                             s->shape[0].cols))
        return err_set(e, E_CONFIG,
                       "%s has groups of %s, %s of %s: a checkpoint in layout "
                       "%s has one group size",
                       x->module, quant_group_text(g.group, a),
                       s->shape[0].module, quant_group_text(group, b),
                       layout_name(p->layout));
    return layout_check(p->layout, g.symmetric, g.group, x, s->shape, s->n, e);
}

int preflight_check(const struct preflight *p, uint64_t *linears, struct err *e)
{
    struct model_config c = { 0 };
    struct shapes s = { 0 };
    uint64_t group = 0;
    int rc;

    if (sidecars_check(p->model, e) || model_config_read(&c, p->model, e))
        return e->code;
    module_choice_apply(&p->choice, &c);
    rc = collect(&s, &c, &p->choice, e);
    if (!rc && s.n)
        group = grid_rules_find(&p->grids, s.shape[0].module).group;
    for (size_t i = 0; !rc && i < s.n; i++)
        rc = check_shape(p, &s, i, group, e);
    if (!rc && !p->silent)
        advise(p, &s);
    if (p->table &&
        (!rc || rc == E_CONFIG)) { /* refused: which sizes would do */
        struct err again;

        if (parallel_print(stdout, &c, p->grids.group, rc ? &again : e) && !rc)
            rc = e->code;
    }
    *linears = s.n;
    free(s.linear);
    free(s.shape);
    model_config_release(&c);
    return rc;
}
