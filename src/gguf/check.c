/* check.c - see check.h. */
#include "gguf/check.h"

#include <stdio.h>
#include <string.h>

/* Whether the tensor is the weight of a linear that will be in 4 bits; *l: it. */
static bool chosen(const struct gguf_want *w, const struct model_config *c,
                   const struct ck_tensor *t, struct linear *l)
{
    const char *dot = t ? strrchr(t->name, '.') : NULL;
    char module[MODULE_PATH_MAX];

    return dot && !strcmp(dot, ".weight") &&
           (size_t)snprintf(module, sizeof(module), "%.*s",
                            (int)(dot - t->name), t->name) < sizeof(module) &&
           model_find_linear(c, module, l) && module_chosen(w->choice, module);
}

static int check_item(const struct gguf_want *w, const struct gguf_plan *p,
                      const struct gguf_item *x, uint64_t *bytes, struct err *e)
{
    struct gguf_item as = *x;
    struct linear l;

    if (chosen(w, &p->config, x->from ? x->from[0] : NULL, &l)) {
        struct module_grid g = grid_rules_find(&w->grids, l.module);
        uint64_t cols = (uint64_t)l.cols;

        if (gguf_fits(l.module, (uint64_t)l.rows, cols, g.group,
                      (cols + g.group - 1) / g.group, e) ||
            (!g.symmetric && gguf_check_zeros(l.module, g.bits, e)))
            return e->code;
        as.type = g.bits == 8 ? GGUF_Q8_0 : g.symmetric ? GGUF_Q4_0 : GGUF_Q4_1;
    }
    *bytes += gguf_item_bytes(&as);
    return 0;
}

int gguf_check(const struct gguf_want *w, uint64_t *bytes, struct err *e)
{
    struct gguf_plan p;
    int rc = gguf_plan(&p, w->dir, NULL, w->q8, e);

    *bytes = 0;
    for (size_t i = 0; i < p.n && !rc; i++)
        rc = check_item(w, &p, &p.item[i], bytes, e);
    gguf_plan_release(&p);
    return rc;
}
