/* fused.c - see fused.h. */
#include "checkpoint/fused.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXPERTS_MAX = 1 << 16, DEFAULT_BLOCK = 128 };

/* The fused tensors of one layer. */
struct fused {
    const char *parent; /* "model.layers.3.mlp.": the first parent_len bytes
                         * of a name */
    int parent_len;
    const struct ck_entry *gate_up, *down;
    uint64_t experts, hidden, width;
    bool inputs_first;
};

static const char gate_up_name[] = "experts.gate_up_proj";
static const char down_name[] = "experts.down_proj";

/* What follows `part` ("experts.gate_up_proj") in name; NULL: it is not in
 * there. */
static const char *tail_of(const char *name, const char *part, int *parent_len)
{
    const char *p = strstr(name, part);

    if (!p || (p > name && p[-1] != '.'))
        return NULL;
    *parent_len = (int)(p - name);
    return p + strlen(part);
}

/* The suffix of the corresponding tensor of one expert; NULL: not a weight or
 * scale. */
static const char *suffix_of(const char *tail)
{
    static const char *const of[][2] = {
        { "", ".weight" },
        { ".weight", ".weight" },
        { "_scale_inv", ".weight_scale_inv" },
        { ".weight_scale_inv", ".weight_scale_inv" },
        { "_scale", ".weight_scale" },
        { ".weight_scale", ".weight_scale" },
    };

    for (size_t i = 0; i < ARRAY_LEN(of); i++)
        if (!strcmp(tail, of[i][0]))
            return of[i][1];
    return NULL;
}

static const struct ck_entry *entry_of(const struct checkpoint *c,
                                       const char *parent, int parent_len,
                                       const char *part, const char *tail)
{
    const struct ck_tensor *t;
    char name[1024];
    int n = snprintf(name, sizeof(name), "%.*s%s%s", parent_len, parent, part,
                     tail);

    t = n > 0 && (size_t)n < sizeof(name) ? checkpoint_find(c, name) : NULL;
    return t ? t->where : NULL;
}

/* 1: en is a fused tensor, *f its layer's; 0: it is not. */
static int find_layer(const struct checkpoint *c, const struct ck_entry *en,
                      struct fused *f, const char **tail, bool *down,
                      struct err *e)
{
    const uint64_t *g, *d;

    *down = false;
    *tail = tail_of(en->name, gate_up_name, &f->parent_len);
    if (!*tail) {
        *tail = tail_of(en->name, down_name, &f->parent_len);
        *down = true;
    }
    if (!*tail || !suffix_of(*tail) || en->ndim != 3)
        return 0;
    f->parent = en->name;
    for (int i = 0; i < 2; i++) {
        const char *weight = i ? ".weight" : "";

        f->gate_up = entry_of(c, en->name, f->parent_len, gate_up_name, weight);
        f->down = entry_of(c, en->name, f->parent_len, down_name, weight);
        if (f->gate_up && f->down)
            break;
    }
    if (!f->gate_up || !f->down)
        return err_set(e, E_DATA,
                       "'%.200s': experts in one tensor, but not both "
                       "gate_up_proj and down_proj are there",
                       en->name);
    g = f->gate_up->dims;
    d = f->down->dims;
    f->inputs_first = g[2] != d[1];
    f->experts = g[0];
    f->hidden = f->inputs_first ? g[1] : g[2];
    f->width = f->inputs_first ? d[1] : d[2];
    if (f->gate_up->ndim == 3 && f->down->ndim == 3 && g[0] == d[0] &&
        g[0] <= EXPERTS_MAX && f->width && f->hidden && g[0] &&
        g[f->inputs_first ? 2 : 1] == 2 * f->width &&
        d[f->inputs_first ? 2 : 1] == f->hidden)
        return 1;
    return err_set(e, E_DATA,
                   "'%.200s': %" PRIu64 "x%" PRIu64 "x%" PRIu64
                   " beside a down_proj of %" PRIu64 "x%" PRIu64 "x%" PRIu64
                   " are no experts, whichever dimension is the outputs'",
                   f->gate_up->name, g[0], g[1], g[2], d[0], d[1], d[2]);
}

/* ---- one expert's ---- */

/* A matrix within a fused tensor: outputs first..first+rows-1 of an expert. */
struct piece {
    const char *name; /* "gate_proj" */
    uint64_t expert, first, rows;
};

static int add_piece(struct ck_list *out, const struct ck_entry *en,
                     const struct fused *f, const struct piece *p,
                     const char *suffix, bool mixtral, struct err *e)
{
    uint64_t contiguous[3] = { en->dims[1] * en->dims[2], en->dims[2], 1 };
    const uint64_t *step = en->strided ? en->stride : contiguous;
    int o = f->inputs_first ? 2 : 1; /* dimension of the outputs */
    uint64_t unit = dtype_bits(en->dtype) / 8;
    struct ck_entry *to;
    char name[1024];
    int n;

    if (mixtral) /* the parent is "mlp." or "block_sparse_moe." */
        n = snprintf(name, sizeof(name),
                     "%.*sblock_sparse_moe.experts.%" PRIu64 ".%s%s",
                     f->parent_len - (int)strlen("mlp."), f->parent, p->expert,
                     p->name, suffix);
    else
        n = snprintf(name, sizeof(name), "%.*sexperts.%" PRIu64 ".%s%s",
                     f->parent_len, f->parent, p->expert, p->name, suffix);
    if (n < 0 || (size_t)n >= sizeof(name))
        return err_set(e, E_DATA, "'%.200s': a name too long", en->name);
    to = ck_list_add(out, name, (size_t)n, e);
    if (!to)
        return e->code;
    to->dtype = en->dtype;
    to->shard = en->shard;
    to->ndim = 2;
    to->dims[0] = p->rows;
    to->dims[1] = en->dims[3 - o];
    to->stride[0] = step[o];
    to->stride[1] = step[3 - o];
    to->offset = en->offset + (p->expert * step[0] + p->first * step[o]) * unit;
    if (!ck_entry_size(to) || !ck_entry_strides(to))
        return err_set(e, E_BUG, "'%.200s': size overflows", en->name);
    return 0;
}

/* Outputs of gate (or up) in a tensor of both, a weight or a scale: one for
 * all, one per output or one per block; 0: they cannot be separated. */
static uint64_t half_of(const struct checkpoint *c, const struct fused *f,
                        uint64_t outputs)
{
    uint64_t block =
        c->quant.block[0] > 0 ? (uint64_t)c->quant.block[0] : DEFAULT_BLOCK;

    if (outputs == 1)
        return 1;
    if (outputs == 2 * f->width)
        return f->width;
    return f->width % block || outputs % 2 ? 0 : outputs / 2;
}

/* Whether the parent is "mlp." in a family whose experts are under
 * "block_sparse_moe.". */
static bool says_mixtral(const struct checkpoint *c, const struct fused *f)
{
    return c->mixtral && f->parent_len >= 4 &&
           !strncmp(f->parent + f->parent_len - 4, "mlp.", 4);
}

static int split(struct ck_list *out, const struct checkpoint *c,
                 const struct ck_entry *en, const struct fused *f,
                 const char *suffix, bool down, struct err *e)
{
    static const char *const names[2][3] = {
        { "gate_proj", "up_proj", "down_proj" }, { "w1", "w3", "w2" }
    };
    const char *const *name = names[c->mixtral];
    uint64_t outputs = en->dims[f->inputs_first ? 2 : 1];
    uint64_t half = half_of(c, f, outputs);
    int r = 0;

    if (en->dims[0] != f->experts || !en->dims[1] || !en->dims[2] ||
        (!down && !half))
        return err_set(e, E_DATA,
                       "'%.200s': does not fall into the experts' parts",
                       en->name);
    for (uint64_t x = 0; x < f->experts && !r; x++) {
        struct piece p = { name[2], x, 0, outputs };

        if (!down) {
            p.name = name[0];
            p.rows = half;
            r = add_piece(out, en, f, &p, suffix, says_mixtral(c, f), e);
            p.name = name[1];
            p.first = outputs == 1 ? 0 : half;
        }
        if (!r)
            r = add_piece(out, en, f, &p, suffix, says_mixtral(c, f), e);
    }
    return r;
}

/* ---- all of them ---- */

/* Move an entry to another list. */
static int move(struct ck_list *out, struct ck_entry *en, struct err *e)
{
    struct ck_entry *to = ck_list_add(out, en->name, strlen(en->name), e);
    char *name;

    if (!to)
        return e->code;
    name = to->name;
    *to = *en;
    to->name = name;
    return 0;
}

/* "....mlp.gate.weight" becomes "....block_sparse_moe.gate.weight", as unfused
 * checkpoints of the family have it. */
static int rename_router(struct ck_entry *en, struct err *e)
{
    static const char from[] = ".mlp.", to[] = ".block_sparse_moe.";
    char *p = strstr(en->name, from), *name;
    size_t head;

    if (!p)
        return 0;
    head = (size_t)(p - en->name);
    name = mem_alloc(strlen(en->name) + sizeof(to), "checkpoint", e);
    if (!name)
        return e->code;
    memcpy(name, en->name, head);
    strcpy(name + head, to);
    strcat(name, p + strlen(from));
    free(en->name);
    en->name = name;
    return 0;
}

static bool any(const struct ck_list *l)
{
    int n;

    for (size_t i = 0; i < l->count; i++)
        if (l->item[i].ndim == 3 &&
            (tail_of(l->item[i].name, gate_up_name, &n) ||
             tail_of(l->item[i].name, down_name, &n)))
            return true;
    return false;
}

int fused_split(struct checkpoint *c, struct err *e)
{
    struct ck_list out = { 0 };
    int r = 0, found = 0;

    if (!any(&c->list))
        return 0;
    for (size_t i = 0; i < c->list.count && r >= 0; i++) {
        struct ck_entry *en = &c->list.item[i];
        struct fused f;
        const char *tail;
        bool down;

        r = find_layer(c, en, &f, &tail, &down, e);
        if (r < 0)
            break;
        found |= r;
        r = r ? split(&out, c, en, &f, suffix_of(tail), down, e) :
                move(&out, en, e);
    }
    for (size_t i = 0; i < out.count && r >= 0 && found && c->mixtral; i++)
        r = rename_router(&out.item[i], e);
    if (r < 0) {
        ck_list_release(&out);
        return r;
    }
    ck_list_release(&c->list);
    c->list = out;
    return found;
}
