/* plan.c - what will be in the file: see convert.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "gguf/blocks.h"
#include "gguf/convert.h"
#include "gguf/names.h"
#include "gguf/scales.h"
#include "gguf/vocab.h"

uint64_t gguf_part_elements(const struct gguf_item *x)
{
    return (x->rows ? x->rows : 1) * x->cols;
}

uint64_t gguf_item_bytes(const struct gguf_item *x)
{
    return gguf_bytes(x->type,
                      (x->parts ? x->parts : 1) * gguf_part_elements(x));
}

/* ---- the list of tensors ---- */

/* from: tensors that it is read from. */
static int add(struct gguf_plan *p, const struct gguf_item *item,
               const char *name, uint64_t from, struct err *e)
{
    struct gguf_item *x;

    if (p->n == p->cap) {
        size_t cap = 2 * p->cap + 64;

        if (mem_grow(&p->item, cap * sizeof(*p->item), "tensors", e))
            return e->code;
        p->cap = cap;
    }
    x = &p->item[p->n++];
    *x = *item;
    x->name = mem_text(name, strlen(name), "tensors", e);
    x->from = from ? mem_zero(from, sizeof(*x->from), "tensors", e) : NULL;
    return x->name && (x->from || !from) ? 0 : e->code;
}

int gguf_fits(const char *module, uint64_t rows, uint64_t cols, uint64_t group,
              uint64_t groups, struct err *e)
{
    char text[GROUP_TEXT];

    if (cols % GGUF_BLOCK == 0 && (group % GGUF_BLOCK == 0 || groups == 1))
        return 0;
    return err_set(e, E_CONFIG,
                   "'%.200s' is %" PRIu64 " x %" PRIu64 " in groups of "
                   "%s: blocks of GGUF have 32 inputs and one scale",
                   module, rows, cols, quant_group_text(group, text));
}

int gguf_check_zeros(const char *module, int bits, struct err *e)
{
    return bits == 4 ?
               0 :
               err_set(e, E_CONFIG,
                       "'%.200s' has codes of %d bits and zero points: blocks "
                       "of GGUF, Q8_0, have none",
                       module, bits);
}

/* *t: of its blocks; *rounded: whether the least weight of one is not what zero and
 * scale say. */
static int check_grid(const struct ck_quantized *q, const char *module,
                      enum gguf_type *t, bool *rounded, struct err *e)
{
    uint16_t *scales, m = 0;
    int rc = 0;

    *rounded = false;

    if (q->g_idx)
        return err_set(e, E_CONFIG,
                       "'%.200s': its g_idx mixes groups (desc_act): inputs of "
                       "a group lie apart, and GGUF has them side by side",
                       module);
    if (gguf_fits(module, q->rows, q->cols, q->group, q->groups, e))
        return e->code;
    scales = gguf_scales(q, module, e);
    if (!scales)
        return e->code;
    *t = q->bits == 8 ? GGUF_Q8_0 : GGUF_Q4_0;
    for (uint64_t i = 0; i < q->rows * q->groups && !rc; i++) {
        if (q->zeros[i] != quant_middle(q->bits)) {
            rc = gguf_check_zeros(module, q->bits, e);
            *t = GGUF_Q4_1;
        }
        if (!rc && q->bits == 4 && !block_min(&m, scales[i], q->zeros[i]))
            rc = err_set(e, E_CONFIG,
                         "'%.200s': of output %" PRIu64 ", group %" PRIu64
                         ", the scale times the zero, %d, is beyond F16",
                         module, i / q->groups, i % q->groups, q->zeros[i]);
        *rounded |= q->bits == 4 && !block_min_exact(m, scales[i], q->zeros[i]);
    }
    free(scales);
    return rc;
}

/* The stack that the expert's tensor goes into, made with its first one; NULL:
 * E_TEMP. */
static struct gguf_item *find_stack(struct gguf_plan *p,
                                    const struct gguf_item *item,
                                    const char *name, struct err *e)
{
    uint64_t n = (uint64_t)p->config.moe.n_experts;

    for (size_t i = p->n; i-- > 0;)
        if (!strcmp(p->item[i].name, name))
            return &p->item[i];
    if (add(p, item, name, n, e))
        return NULL;
    p->item[p->n - 1].parts = n;
    return &p->item[p->n - 1];
}

/* Give *x, of the tensor's rows and columns, the shape of this place. */
static int lay_out(const struct gguf_plan *p, const struct ck_tensor *t,
                   const struct gguf_place *at, struct gguf_item *x,
                   struct err *e)
{
    uint64_t nope = (uint64_t)p->config.mla.nope;
    uint64_t v = (uint64_t)p->config.v_dim;

    x->form = at->form;
    x->head = at->head;
    if (at->form != GGUF_KEYS && at->form != GGUF_VALUES)
        return 0;
    x->parts = (uint64_t)p->config.n_heads;
    if (x->rows != x->parts * (nope + v))
        return err_set(e, E_DATA,
                       "'%.200s': has %" PRIu64 " outputs, no %" PRIu64
                       " heads of %" PRIu64 " and %" PRIu64,
                       t->name, x->rows, x->parts, nope, v);
    x->rows = at->form == GGUF_KEYS ? x->cols : v;
    x->cols = at->form == GGUF_KEYS ? nope : x->cols;
    return 0;
}

/* Add a tensor of the checkpoint, or an expert's to its stack. */
static int add_at(struct gguf_plan *p, const struct ck_tensor *t,
                  const struct gguf_item *item, const struct gguf_place *at,
                  struct err *e)
{
    struct gguf_item *x;

    if (at->form != GGUF_STACK) {
        if (add(p, item, at->name, 1, e))
            return e->code;
        p->item[p->n - 1].from[0] = t;
        return 0;
    }
    x = find_stack(p, item, at->name, e);
    if (!x)
        return e->code;
    if (x->type == GGUF_Q4_0 && item->type == GGUF_Q4_1)
        x->type = GGUF_Q4_1; /* which holds what the others have, too */
    if (x->packed != item->packed ||
        (x->type != item->type &&
         !(x->type == GGUF_Q4_1 && item->type == GGUF_Q4_0)) ||
        x->rows != item->rows || x->cols != item->cols || x->from[at->expert])
        return err_set(e, E_CONFIG,
                       "'%.200s' is not stored as other experts of its layer: "
                       "GGUF has them in one tensor",
                       t->name);
    x->from[at->expert] = t;
    return 0;
}

static int no_name(const char *name, struct err *e)
{
    return err_set(e, E_CONFIG, "'%.200s': llama.cpp has no name for it", name);
}

/* Vectors are F32, as llama.cpp wants them. */
static enum gguf_type plain_type(const struct gguf_plan *p,
                                 const struct gguf_item *x, enum dtype t)
{
    if (!x->rows)
        return GGUF_F32;
    if (p->q8 && x->cols % GGUF_BLOCK == 0)
        return GGUF_Q8_0;
    return t == DT_BF16 ? GGUF_BF16 : t == DT_F16 ? GGUF_F16 : GGUF_F32;
}

static int add_packed(struct gguf_plan *p, const struct ck_tensor *t,
                      const char *module, struct err *e)
{
    struct gguf_item item = { .packed = true };
    struct gguf_place place[GGUF_PLACES];
    char weight[1100];
    struct ck_quantized q;
    bool rounded = false;
    int rc = checkpoint_grid(p->c, module, &q, e), n;

    snprintf(weight, sizeof(weight), "%s.weight", module);
    n = gguf_places(&p->config, weight, place);
    if (rc > 0 && !n)
        rc = no_name(module, e);
    if (rc > 0)
        rc = check_grid(&q, module, &item.type, &rounded, e);
    item.rows = q.rows;
    item.cols = q.cols;
    ck_quantized_release(&q);
    if (rc < 0)
        return rc;
    *(item.type == GGUF_Q4_0 ? &p->q4_0 :
      item.type == GGUF_Q8_0 ? &p->q8_0 :
                               &p->q4_1) += 1;
    p->rounded += rounded;
    for (int i = 0; i < n; i++) {
        struct gguf_item x = item;

        if (lay_out(p, t, &place[i], &x, e))
            return e->code;
        /* inputs become outputs, so groups no longer lie in rows */
        if (x.form == GGUF_KEYS) {
            x.packed = false;
            x.type = plain_type(p, &x, DT_F32);
        }
        if (add_at(p, t, &x, &place[i], e))
            return e->code;
    }
    return 0;
}

static int add_plain(struct gguf_plan *p, const struct ck_tensor *t,
                     struct err *e)
{
    struct gguf_place place[GGUF_PLACES];
    int n;

    if (tensor_name_is_table(t->name) || tensor_name_is_other_scale(t->name) ||
        gguf_is_extra(&p->config, t->name))
        return 0;
    n = gguf_places(&p->config, t->name, place);
    if (!n)
        return no_name(t->name, e);
    if (!dtype_is_float(t->dtype) || t->ndim < 1 || t->ndim > 2)
        return err_set(e, E_DATA, "'%.200s': is no matrix or vector of floats",
                       t->name);
    for (int i = 0; i < n; i++) {
        struct gguf_item x = { .cols = t->dims[t->ndim - 1] };

        if (t->ndim == 2 && t->dims[0] != 1)
            x.rows = t->dims[0];
        if (lay_out(p, t, &place[i], &x, e))
            return e->code;
        x.type = place[i].f32 ? GGUF_F32 : plain_type(p, &x, t->dtype);
        p->doubles += t->dtype == DT_F64 && x.type == GGUF_F32;
        if (add_at(p, t, &x, &place[i], e))
            return e->code;
    }
    return 0;
}

/* E_DATA: an expert is missing. */
static int check_stacks(const struct gguf_plan *p, struct err *e)
{
    for (size_t i = 0; i < p->n; i++)
        for (uint64_t k = 0;
             p->item[i].form == GGUF_STACK && k < p->item[i].parts; k++)
            if (!p->item[i].from[k])
                return err_set(e, E_DATA, "'%s': expert %" PRIu64 " is missing",
                               p->item[i].name, k);
    return 0;
}

static int list(struct gguf_plan *p, struct err *e)
{
    int rc = 0;

    for (size_t i = 0; i < checkpoint_count(p->c) && !rc; i++) {
        const struct ck_tensor *t = checkpoint_tensor(p->c, i);
        char module[1024];
        bool first;

        if (!checkpoint_part(p->c, t, module, sizeof(module), &first))
            rc = add_plain(p, t, e);
        else if (first)
            rc = add_packed(p, t, module, e);
    }
    if (!rc && p->config.rope.kind == ROPE_LLAMA3) {
        const struct gguf_item freqs = { .type = GGUF_F32,
                                         .cols =
                                             (uint64_t)p->config.rotary / 2 };

        rc = add(p, &freqs, "rope_freqs.weight", 0, e);
    }
    return rc ? rc : check_stacks(p, e);
}

int gguf_plan(struct gguf_plan *p, const char *dir, const char *name, bool q8,
              struct err *e)
{
    const char *slash = strrchr(dir, '/'), *a;

    *p = (struct gguf_plan){ .dir = dir, .q8 = q8 };
    p->name = name ? name : slash && slash[1] ? slash + 1 : dir;
    if (model_config_read(&p->config, dir, e) ||
        gguf_architecture(&p->config, &a, e) ||
        checkpoint_open(&p->c, dir, e) || list(p, e))
        return e->code;
    gguf_put_model(p, a);
    if (gguf_put_made(p, e) || gguf_vocab(&p->head, &p->config, dir, e))
        return e->code;
    p->digests = gguf_u64s(&p->head, DIGESTS_KEY, p->n + 1);
    for (size_t i = 0; i < p->n; i++)
        gguf_tensor(&p->head, p->item[i].name, p->item[i].type,
                    p->item[i].parts, p->item[i].rows, p->item[i].cols);
    return 0;
}

void gguf_plan_release(struct gguf_plan *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->item[i].name);
        free(p->item[i].from);
    }
    free(p->item);
    gguf_release(&p->head);
    checkpoint_close(p->c);
    model_config_release(&p->config);
}
