/* plan.c - what will be in the file: see convert.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/blocks.h"
#include "gguf/convert.h"
#include "gguf/names.h"
#include "gguf/scales.h"
#include "gguf/vocab.h"

/* ---- the list of tensors ---- */

static int add(struct gguf_plan *p, const struct gguf_item *item,
               const char *name, struct err *e)
{
    if (p->n == p->cap) {
        size_t cap = 2 * p->cap + 64;

        if (mem_grow(&p->item, cap * sizeof(*p->item), "tensors", e))
            return e->code;
        p->cap = cap;
    }
    p->item[p->n] = *item;
    p->item[p->n].name = mem_text(name, strlen(name), "tensors", e);
    if (!p->item[p->n].name)
        return e->code;
    p->n++;
    return 0;
}

static int check_grid(const struct ck_quantized *q, const char *module,
                      enum gguf_type *t, struct err *e)
{
    uint16_t *scales, m;
    int rc = 0;

    if (q->g_idx)
        return err_set(e, E_CONFIG,
                       "'%.200s': its g_idx mixes groups (desc_act): inputs of "
                       "a group lie apart, and GGUF has them side by side",
                       module);
    if (q->cols % GGUF_BLOCK || (q->group % GGUF_BLOCK && q->groups > 1))
        return err_set(e, E_CONFIG,
                       "'%.200s' is %" PRIu64 " x %" PRIu64 " in groups of "
                       "%" PRIu64 ": blocks of GGUF have 32 inputs and one "
                       "scale",
                       module, q->rows, q->cols, q->group);
    scales = gguf_scales(q, module, e);
    if (!scales)
        return e->code;
    *t = GGUF_Q4_0;
    for (uint64_t i = 0; i < q->rows * q->groups && !rc; i++) {
        if (q->zeros[i] != 8)
            *t = GGUF_Q4_1;
        if (!block_min(&m, scales[i], q->zeros[i]))
            rc = err_set(e, E_CONFIG,
                         "'%.200s': of output %" PRIu64 ", group %" PRIu64
                         ", the scale times the zero, %d, is beyond F16",
                         module, i / q->groups, i % q->groups, q->zeros[i]);
    }
    free(scales);
    return rc;
}

static int add_packed(struct gguf_plan *p, const struct ck_tensor *t,
                      const char *module, struct err *e)
{
    struct gguf_item item = { .from = t, .packed = true };
    char name[GGUF_NAME_MAX], weight[1100];
    struct ck_quantized q;
    int rc = checkpoint_grid(p->c, module, &q, e);

    snprintf(weight, sizeof(weight), "%s.weight", module);
    if (rc > 0 && !gguf_name(&p->config, weight, name, &item.head))
        rc = err_set(e, E_CONFIG, "'%.200s': llama.cpp has no name for it",
                     module);
    if (rc > 0)
        rc = check_grid(&q, module, &item.type, e);
    item.rows = q.rows;
    item.cols = q.cols;
    ck_quantized_release(&q);
    if (rc < 0)
        return rc;
    *(item.type == GGUF_Q4_0 ? &p->q4_0 : &p->q4_1) += 1;
    return add(p, &item, name, e);
}

/* Vectors are F32, as llama.cpp wants them. */
static enum gguf_type plain_type(const struct gguf_plan *p,
                                 const struct ck_tensor *t)
{
    if (t->ndim == 1)
        return GGUF_F32;
    if (p->q8 && t->dims[1] % GGUF_BLOCK == 0)
        return GGUF_Q8_0;
    return t->dtype == DT_BF16 ? GGUF_BF16 :
           t->dtype == DT_F16  ? GGUF_F16 :
                                 GGUF_F32;
}

static int add_plain(struct gguf_plan *p, const struct ck_tensor *t,
                     struct err *e)
{
    struct gguf_item item = { .from = t };
    char name[GGUF_NAME_MAX];

    if (tensor_name_is_table(t->name) ||
        (p->config.tied && !strcmp(t->name, "lm_head.weight")))
        return 0;
    if (!gguf_name(&p->config, t->name, name, &item.head))
        return err_set(e, E_CONFIG, "'%.200s': llama.cpp has no name for it",
                       t->name);
    if (!dtype_is_float(t->dtype) || t->ndim < 1 || t->ndim > 2)
        return err_set(e, E_DATA, "'%.200s': is no matrix or vector of floats",
                       t->name);
    item.type = plain_type(p, t);
    item.rows = t->ndim == 2 ? t->dims[0] : 0;
    item.cols = t->dims[t->ndim - 1];
    return add(p, &item, name, e);
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

        rc = add(p, &freqs, "rope_freqs.weight", e);
    }
    return rc;
}

/* ---- metadata ---- */

static const char *key(const char *architecture, const char *name)
{
    static char text[128];

    snprintf(text, sizeof(text), "%s.%s", architecture, name);
    return text;
}

static void put_rope(struct gguf *g, const char *a, const struct rope *r)
{
    gguf_f32(g, key(a, "rope.freq_base"), r->theta);
    if (r->kind != ROPE_LINEAR && r->kind != ROPE_YARN)
        return;
    gguf_string(g, key(a, "rope.scaling.type"),
                r->kind == ROPE_YARN ? "yarn" : "linear");
    gguf_f32(g, key(a, "rope.scaling.factor"), r->factor);
    if (r->kind == ROPE_YARN)
        gguf_u32(g, key(a, "rope.scaling.original_context_length"),
                 (uint64_t)r->original_max_position);
}

/* LLAMA_FTYPE of most of the linears. */
static uint64_t file_type(const struct gguf_plan *p)
{
    enum gguf_type t = GGUF_F32;

    if (p->q4_0 + p->q4_1)
        return p->q4_1 > p->q4_0 ? 3 : 2;
    for (size_t i = 0; i < p->n; i++)
        if (p->item[i].rows)
            t = p->item[i].type;
    return t == GGUF_Q8_0 ? 7 : t == GGUF_BF16 ? 32 : t == GGUF_F16 ? 1 : 0;
}

static void put_model(struct gguf_plan *p, const char *a)
{
    const struct model_config *c = &p->config;
    struct gguf *g = &p->head;
    const char *slash = strrchr(p->dir, '/');

    gguf_string(g, "general.architecture", a);
    gguf_string(g, "general.type", "model");
    gguf_string(g, "general.name", slash && slash[1] ? slash + 1 : p->dir);
    gguf_string(g, "general.quantized_by", "4bit-forge " FORGE_VERSION);
    gguf_u32(g, "general.quantization_version", 2);
    gguf_u32(g, "general.file_type", file_type(p));
    gguf_u32(g, key(a, "block_count"), (uint64_t)c->n_layers);
    gguf_u32(g, key(a, "context_length"), (uint64_t)c->max_position);
    gguf_u32(g, key(a, "embedding_length"), (uint64_t)c->hidden_size);
    gguf_u32(g, key(a, "feed_forward_length"), (uint64_t)c->intermediate_size);
    gguf_u32(g, key(a, "attention.head_count"), (uint64_t)c->n_heads);
    gguf_u32(g, key(a, "attention.head_count_kv"), (uint64_t)c->n_kv_heads);
    gguf_u32(g, key(a, "attention.key_length"), (uint64_t)c->head_dim);
    gguf_u32(g, key(a, "attention.value_length"), (uint64_t)c->v_dim);
    gguf_f32(g, key(a, "attention.layer_norm_rms_epsilon"), c->rms_eps);
    gguf_u32(g, key(a, "rope.dimension_count"), (uint64_t)c->rotary);
    gguf_u32(g, key(a, "vocab_size"), (uint64_t)c->vocab_size);
    put_rope(g, a, &c->rope);
}

int gguf_plan(struct gguf_plan *p, const char *dir, bool q8, struct err *e)
{
    const char *a;

    *p = (struct gguf_plan){ .dir = dir, .q8 = q8 };
    if (model_config_read(&p->config, dir, e) ||
        gguf_architecture(&p->config, &a, e) ||
        checkpoint_open(&p->c, dir, e) || list(p, e))
        return e->code;
    put_model(p, a);
    if (gguf_vocab(&p->head, &p->config, dir, e))
        return e->code;
    for (size_t i = 0; i < p->n; i++)
        gguf_tensor(&p->head, p->item[i].name, p->item[i].type, p->item[i].rows,
                    p->item[i].cols);
    return 0;
}

void gguf_plan_release(struct gguf_plan *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->item[i].name);
    free(p->item);
    gguf_release(&p->head);
    checkpoint_close(p->c);
    model_config_release(&p->config);
}
