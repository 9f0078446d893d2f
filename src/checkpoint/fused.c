/* fused.c - see fused.h. */
#include "checkpoint/fused.h"

#include "checkpoint/mxfp4.h"

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
    const char *const *part; /* one of pairs[] */
    const struct ck_entry *gate_up, *down;
    uint64_t experts, hidden, width;
    bool inputs_first;
};

/* Their names: gate and up; down.  Granite's are [E, 2I, H] and [E, H, I]. */
static const char *const pairs[][2] = {
    { "experts.gate_up_proj", "experts.down_proj" },
    { "input_linear", "output_linear" },
};

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

/* A kind of fused tensor, by the tail of its name. */
struct form {
    const char *tail;
    const char *suffix; /* of the corresponding tensor of one expert */
    int ndim;
    bool outputs_first; /* whatever the weights are */
};

static const struct form forms[] = {
    { "", ".weight", 3, false },
    { ".weight", ".weight", 3, false },
    { "_scale_inv", ".weight_scale_inv", 3, false },
    { ".weight_scale_inv", ".weight_scale_inv", 3, false },
    { "_scale", ".weight_scale", 3, false },
    { ".weight_scale", ".weight_scale", 3, false },
    { "_bias", ".bias", 2, true },
    { "_blocks", ".weight", 4, true },
    { "_scales", NULL, 3, true }, /* split with _blocks */
};

/* The form of a tensor with this tail and so many dimensions; NULL: none. */
static const struct form *form_of(const char *tail, int ndim)
{
    for (size_t i = 0; i < ARRAY_LEN(forms); i++)
        if (!strcmp(tail, forms[i].tail) && ndim == forms[i].ndim)
            return &forms[i];
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

/* en is a fused tensor: its form, the tensor's parent in *f; NULL: it is
 * not. */
static const struct form *find_form(const struct ck_entry *en, struct fused *f,
                                    bool *down)
{
    f->parent = en->name;
    for (size_t i = 0; i < 2 * ARRAY_LEN(pairs); i++) {
        const char *tail;

        f->part = pairs[i / 2];
        *down = i % 2;
        tail = tail_of(en->name, f->part[*down], &f->parent_len);
        if (tail)
            return form_of(tail, en->ndim);
    }
    return NULL;
}

static bool is_mxfp4(const struct ck_entry *en)
{
    return en->ndim == 4 && en->dims[3] == MXFP4_BYTES && en->dtype == DT_U8 &&
           !en->strided;
}

/* Sizes of a layer's experts. */
static int find_sizes(struct fused *f, struct err *e)
{
    const uint64_t *g = f->gate_up->dims, *d = f->down->dims;
    bool mx = f->gate_up->ndim == 4;

    if (mx && is_mxfp4(f->gate_up) && is_mxfp4(f->down)) {
        f->hidden = g[2] * MXFP4_GROUP;
        f->width = d[2] * MXFP4_GROUP;
    } else if (!mx) {
        f->inputs_first = g[2] != d[1];
        f->hidden = f->inputs_first ? g[1] : g[2];
        f->width = f->inputs_first ? d[1] : d[2];
    }
    f->experts = g[0];
    if (f->gate_up->ndim == f->down->ndim && g[0] == d[0] &&
        g[0] <= EXPERTS_MAX && f->width && f->hidden && g[0] &&
        g[f->inputs_first ? 2 : 1] == 2 * f->width &&
        d[f->inputs_first ? 2 : 1] == f->hidden)
        return 0;
    return err_set(e, E_DATA,
                   "'%.200s': %" PRIu64 "x%" PRIu64 "x%" PRIu64
                   " beside a down_proj of %" PRIu64 "x%" PRIu64 "x%" PRIu64
                   " are no experts, whichever dimension is the outputs'",
                   f->gate_up->name, g[0], g[1], g[2], d[0], d[1], d[2]);
}

/* The layer of the fused tensor en. */
static int find_layer(const struct checkpoint *c, const struct ck_entry *en,
                      struct fused *f, struct err *e)
{
    static const char *const weights[] = { "", ".weight", "_blocks" };

    for (size_t i = 0; i < ARRAY_LEN(weights); i++) {
        const char *weight = weights[i];

        f->gate_up = entry_of(c, en->name, f->parent_len, f->part[0], weight);
        f->down = entry_of(c, en->name, f->parent_len, f->part[1], weight);
        if (f->gate_up && f->down)
            break;
    }
    if (!f->gate_up || !f->down)
        return err_set(e, E_DATA,
                       "'%.200s': experts in one tensor, but not both "
                       "%s and %s are there",
                       en->name, f->part[0], f->part[1]);
    return find_sizes(f, e);
}

/* ---- one expert's ---- */

/* A matrix within a fused tensor: `rows` outputs of an expert from the first
 * on, every step-th. */
struct piece {
    const char *name; /* "gate_proj" */
    uint64_t expert, first, rows, step;
};

static int add_piece(struct ck_list *out, const struct ck_entry *en,
                     const struct fused *f, const struct piece *p,
                     const struct form *form, bool mixtral, struct err *e)
{
    uint64_t contiguous[3] = { en->dims[1] * en->dims[2], en->dims[2], 1 };
    const uint64_t *step = en->strided ? en->stride : contiguous;
    int o = f->inputs_first && !form->outputs_first ? 2 : 1; /* outputs */
    uint64_t unit = dtype_bits(en->dtype) / 8;
    const char *suffix = form->suffix ? form->suffix : ".scale";
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
    to->mxfp4 = form->ndim == 4;
    to->ndim = form->ndim == 2 ? 1 : 2;
    to->dims[0] = p->rows;
    to->dims[1] = en->dims[3 - o];
    to->stride[0] = p->step * step[o];
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
                 const struct form *form, bool down, struct err *e)
{
    static const char *const names[2][3] = {
        { "gate_proj", "up_proj", "down_proj" }, { "w1", "w3", "w2" }
    };
    const char *const *name = names[c->mixtral];
    uint64_t outputs =
        en->dims[f->inputs_first && !form->outputs_first ? 2 : 1];
    uint64_t half = half_of(c, f, outputs);
    int r = 0;

    if (en->dims[0] != f->experts || !en->dims[1] || !en->dims[2] ||
        (!down && !half))
        return err_set(e, E_DATA,
                       "'%.200s': does not fall into the experts' parts",
                       en->name);
    for (uint64_t x = 0; x < f->experts && !r; x++) {
        struct piece p = { name[2], x, 0, outputs, 1 };

        if (!down) {
            p.name = name[0];
            p.rows = half;
            p.step = c->interleaved ? 2 : 1;
            r = add_piece(out, en, f, &p, form, says_mixtral(c, f), e);
            p.name = name[1];
            p.first = outputs == 1 ? 0 : c->interleaved ? 1 : half;
        }
        if (!r)
            r = add_piece(out, en, f, &p, form, says_mixtral(c, f), e);
    }
    return r;
}

/* en with three dimensions: experts, outputs, what remains. */
static struct ck_entry matrices(const struct ck_entry *en)
{
    struct ck_entry flat = *en;

    flat.dims[2] = en->ndim == 4 ? en->dims[2] * en->dims[3] :
                   en->ndim == 2 ? 1 :
                                   en->dims[2];
    return flat;
}

/* Split a fused tensor; of MXFP4 with its scales. */
static int split_form(struct ck_list *out, struct checkpoint *c,
                      const struct ck_entry *en, const struct fused *f,
                      const struct form *form, bool down, struct err *e)
{
    struct ck_entry flat = matrices(en);
    const struct ck_entry *scale;

    if (!form->suffix)
        return 0;
    if (split(out, c, &flat, f, form, down, e))
        return e->code;
    if (form->ndim != 4)
        return 0;
    scale = entry_of(c, f->parent, f->parent_len, f->part[down], "_scales");
    if (!scale || scale->ndim != 3 || scale->dtype != DT_U8 || scale->strided ||
        scale->dims[1] != en->dims[1] || scale->dims[2] != en->dims[2])
        return err_set(e, E_DATA, "'%.200s': there are no scales of it",
                       en->name);
    return split(&c->mx_scales, c, scale, f, form_of("_scales", 3), down, e);
}

/* Each MXFP4 weight has the scales that were split off beside it. */
static void pair_scales(struct checkpoint *c)
{
    size_t k = 0;

    for (size_t i = 0; i < c->list.count; i++)
        if (c->list.item[i].mxfp4)
            c->list.item[i].scale = &c->mx_scales.item[k++];
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
    struct fused f;
    bool down;

    for (size_t i = 0; i < l->count; i++)
        if (find_form(&l->item[i], &f, &down))
            return true;
    return false;
}

int fused_split(struct checkpoint *c, struct err *e)
{
    struct ck_list out = { 0 };
    int r = 0;

    if (!any(&c->list))
        return 0;
    for (size_t i = 0; i < c->list.count && !r; i++) {
        struct ck_entry *en = &c->list.item[i];
        struct fused f = { 0 };
        bool down;
        const struct form *form = find_form(en, &f, &down);

        if (!form)
            r = move(&out, en, e);
        else if (!(r = find_layer(c, en, &f, e)))
            r = split_form(&out, c, en, &f, form, down, e);
    }
    for (size_t i = 0; i < out.count && !r && c->mixtral; i++)
        r = rename_router(&out.item[i], e);
    if (r) {
        ck_list_release(&out);
        return r;
    }
    ck_list_release(&c->list);
    c->list = out;
    pair_scales(c);
    return 1;
}
