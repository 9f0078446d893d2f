/* shape.c - see w4a16.h: what every device checks of a linear, and the order of
 * its inputs. */
#include <inttypes.h>
#include <stdlib.h>

#include "w4a16/w4a16.h"

static const char what[] = "4-bit linear";

/* Inputs, outputs and rows are fewer. */
static const int64_t most = (int64_t)1 << 31;

int w4_check(const struct forge_w4a16_linear *l, struct err *e)
{
    if (!l)
        return err_set(e, E_CONFIG, "%s: NULL", what);
    if (l->outputs < 1 || l->inputs < 1 || l->outputs >= most ||
        l->inputs >= most || l->group < 0 || !l->codes || !l->scales)
        return err_set(e, E_CONFIG, "%s: no such shape", what);
    if (l->layout < FORGE_W4A16_COMPRESSED_TENSORS ||
        l->layout > FORGE_W4A16_GPTQ_V2)
        return err_set(e, E_CONFIG, "%s: no such layout", what);
    if (l->layout == FORGE_W4A16_AWQ && l->outputs % 8)
        return err_set(e, E_CONFIG,
                       "%s: %" PRId64 " outputs do not fill words of AWQ", what,
                       l->outputs);
    if (l->scale_type < FORGE_W4A16_F32 || l->scale_type > FORGE_W4A16_BF16)
        return err_set(e, E_CONFIG, "%s: no such type of scales", what);
    return 0;
}

static int64_t group_of(const struct w4_order *o, int64_t k)
{
    return o->g_idx ? o->g_idx[k] : k / o->group;
}

struct w4_order w4_order(const struct forge_w4a16_linear *l)
{
    int64_t group = l->group && l->group < l->inputs ? l->group : l->inputs;

    return (struct w4_order){ l->layout == FORGE_W4A16_AWQ ? NULL : l->g_idx,
                              l->inputs, group,
                              (l->inputs + group - 1) / group };
}

int w4_order_check(struct w4_order *o, struct err *e)
{
    bool plain = true, unused = true;

    /* compressed-tensors: g_idx is not in use where all are -1 */
    for (int64_t k = 0; o->g_idx && unused && k < o->cols; k++)
        unused = o->g_idx[k] == -1;
    for (int64_t k = 0; o->g_idx && !unused && k < o->cols; k++) {
        plain = plain && o->g_idx[k] == k / o->group;
        if (o->g_idx[k] < 0 || o->g_idx[k] >= o->groups)
            return err_set(e, E_DATA,
                           "%s: g_idx has input %" PRId64
                           " in group %d of %" PRId64,
                           what, k, (int)o->g_idx[k], o->groups);
    }
    if (plain || unused)
        o->g_idx = NULL;
    return 0;
}

static const char product[] = "4-bit product";

int64_t w4_expert_rows(const int64_t *first, bool there, struct err *e)
{
    if (first[0] < 0 || first[1] < first[0])
        return err_set(e, E_CONFIG, "%s: rows out of order", product);
    if (first[1] >= most)
        return err_set(e, E_CONFIG, "%s: no such number of rows", product);
    if (first[1] > first[0] && !there)
        return err_set(e, E_CONFIG, "%s: rows of no expert", product);
    return first[1] - first[0];
}

int w4_rows_check(const struct forge_w4a16_rows *r, const char *name,
                  int64_t end, int64_t cols, struct err *e)
{
    if (!r || (end > 0 && !r->p))
        return err_set(e, E_CONFIG, "%s: %s is NULL", product, name);
    if (end < 0 || end >= most)
        return err_set(e, E_CONFIG, "%s: no such number of rows", product);
    if (r->type < FORGE_W4A16_F32 || r->type > FORGE_W4A16_BF16)
        return err_set(e, E_CONFIG, "%s: no such type of %s", product, name);
    if (end > 1 && r->ld < cols)
        return err_set(e, E_CONFIG, "%s: rows of %s overlap", product, name);
    return 0;
}

int w4_sort(const struct w4_order *o, int64_t unit, int64_t *first,
            int32_t **input, struct err *e)
{
    int64_t *next = mem_zero((size_t)o->groups + 1, sizeof(*next), what, e);
    int64_t depth = 0;
    int rc = 0;

    *input = NULL;
    if (!next)
        return e->code;
    for (int64_t k = 0; k < o->cols; k++)
        next[group_of(o, k)]++;
    for (int64_t g = 0; g < o->groups; g++) {
        int64_t n = (next[g] + unit - 1) / unit * unit;

        first[g] = next[g] = depth;
        depth += n;
    }
    first[o->groups] = depth;
    *input = mem_alloc((size_t)depth * sizeof(**input), what, e);
    for (int64_t i = 0; *input && i < depth; i++)
        (*input)[i] = -1;
    for (int64_t k = 0; *input && k < o->cols; k++)
        (*input)[next[group_of(o, k)]++] = (int32_t)k;
    rc = *input ? 0 : e->code;
    free(next);
    return rc;
}
