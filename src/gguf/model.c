/* model.c - a model's configuration as metadata of GGUF: see convert.h. */
#include <stdio.h>

#include "gguf/convert.h"

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
    if (r->kind != ROPE_YARN)
        return;
    gguf_u32(g, key(a, "rope.scaling.original_context_length"),
             (uint64_t)r->original_max_position);
    gguf_f32(g, key(a, "rope.scaling.yarn_beta_fast"), r->beta_fast);
    gguf_f32(g, key(a, "rope.scaling.yarn_beta_slow"), r->beta_slow);
    /* which llama.cpp multiplies by 10 */
    if (r->mscale_all_dim > 0)
        gguf_f32(g, key(a, "rope.scaling.yarn_log_multiplier"),
                 0.1 * r->mscale_all_dim);
}

/* Latent attention: llama.cpp multiplies queries by the keys' part of kv_b_proj,
 * and so has one head of keys and values, the latent. */
static void put_latent(struct gguf *g, const char *a,
                       const struct model_config *c)
{
    uint64_t rank = (uint64_t)c->mla.kv_lora;

    gguf_u32(g, key(a, "attention.head_count_kv"), 1);
    gguf_u32(g, key(a, "attention.q_lora_rank"), (uint64_t)c->mla.q_lora);
    gguf_u32(g, key(a, "attention.kv_lora_rank"), rank);
    gguf_u32(g, key(a, "attention.key_length"), rank + (uint64_t)c->mla.rope);
    gguf_u32(g, key(a, "attention.value_length"), rank);
    gguf_u32(g, key(a, "attention.key_length_mla"), (uint64_t)c->head_dim);
    gguf_u32(g, key(a, "attention.value_length_mla"), (uint64_t)c->v_dim);
}

static void put_experts(struct gguf *g, const char *a,
                        const struct model_config *c)
{
    enum { SOFTMAX = 1, SIGMOID = 2 };
    const struct moe *m = &c->moe;
    uint64_t dense = 0;

    while (dense < (uint64_t)c->n_layers && !m->sparse[dense])
        dense++;
    gguf_u32(g, key(a, "leading_dense_block_count"), dense);
    gguf_u32(g, key(a, "expert_count"), (uint64_t)m->n_experts);
    gguf_u32(g, key(a, "expert_used_count"), (uint64_t)m->top_k);
    gguf_u32(g, key(a, "expert_feed_forward_length"), (uint64_t)m->width);
    gguf_u32(g, key(a, "expert_shared_count"),
             (uint64_t)(m->shared_width / m->width));
    gguf_u32(g, key(a, "expert_shared_feed_forward_length"),
             (uint64_t)m->shared_width);
    gguf_f32(g, key(a, "expert_weights_scale"), m->scale);
    gguf_bool(g, key(a, "expert_weights_norm"), m->renormalize);
    gguf_u32(g, key(a, "expert_gating_func"),
             c->family->router == ROUTER_SIGMOID ? SIGMOID : SOFTMAX);
    if (m->grouped && m->topk_group < m->n_group) {
        gguf_u32(g, key(a, "expert_group_count"), (uint64_t)m->n_group);
        gguf_u32(g, key(a, "expert_group_used_count"), (uint64_t)m->topk_group);
    }
}

/* LLAMA_FTYPE of most of the linears. */
static uint64_t file_type(const struct gguf_plan *p)
{
    enum gguf_type t = GGUF_F32;

    if (p->q8_0 > p->q4_0 + p->q4_1)
        return 7;
    if (p->q4_0 + p->q4_1)
        return p->q4_1 > p->q4_0 ? 3 : 2;
    for (size_t i = 0; i < p->n; i++)
        if (p->item[i].rows)
            t = p->item[i].type;
    return t == GGUF_Q8_0 ? 7 : t == GGUF_BF16 ? 32 : t == GGUF_F16 ? 1 : 0;
}

void gguf_put_model(struct gguf_plan *p, const char *a)
{
    const struct model_config *c = &p->config;
    struct gguf *g = &p->head;

    gguf_string(g, "general.architecture", a);
    gguf_string(g, "general.type", "model");
    gguf_string(g, "general.name", p->name);
    gguf_string(g, "general.quantized_by", "4bit-forge " FORGE_VERSION);
    gguf_u32(g, "general.quantization_version", 2);
    gguf_u32(g, "general.file_type", file_type(p));
    gguf_u32(g, key(a, "block_count"), (uint64_t)c->n_layers);
    gguf_u32(g, key(a, "context_length"), (uint64_t)c->max_position);
    gguf_u32(g, key(a, "embedding_length"), (uint64_t)c->hidden_size);
    gguf_u32(g, key(a, "feed_forward_length"), (uint64_t)c->intermediate_size);
    gguf_u32(g, key(a, "attention.head_count"), (uint64_t)c->n_heads);
    if (c->mla.kv_lora) {
        put_latent(g, a, c);
    } else {
        gguf_u32(g, key(a, "attention.head_count_kv"), (uint64_t)c->n_kv_heads);
        gguf_u32(g, key(a, "attention.key_length"), (uint64_t)c->head_dim);
        gguf_u32(g, key(a, "attention.value_length"), (uint64_t)c->v_dim);
    }
    if (c->moe.n_experts)
        put_experts(g, a, c);
    gguf_f32(g, key(a, "attention.layer_norm_rms_epsilon"), c->rms_eps);
    gguf_u32(g, key(a, "rope.dimension_count"), (uint64_t)c->rotary);
    gguf_u32(g, key(a, "vocab_size"), (uint64_t)c->vocab_size);
    put_rope(g, a, &c->rope);
}
