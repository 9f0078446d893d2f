/* kv_cache.c - see model.h: the KV cache. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/delta.h"

/* Bytes of a layer's keys and values, and of all layers.  On a device rows of
 * tokens, as its linears put them out; on the host packed for attention. */
static int find_sizes(struct kv_cache *p, const struct model *m, size_t *all,
                      struct err *e)
{
    const struct model_config *c = &m->config;
    size_t element = attention_pairs(m) ? sizeof(uint16_t) : sizeof(float);
    size_t key = (size_t)(c->n_kv_heads * c->head_dim) * element;
    size_t value = (size_t)(c->n_kv_heads * attention_padded(c)) * element;
    size_t rows;

    p->blocks = (p->tokens + ATTEND_KEYS - 1) / ATTEND_KEYS;
    rows = (size_t)(p->sequences * p->blocks) * ATTEND_KEYS;
    if (m->on && c->mla.kv_lora) {
        key = (size_t)(c->mla.kv_lora + c->mla.rope) * m->size;
        value = (size_t)(c->n_heads * (c->mla.nope + c->v_dim)) * m->size;
    } else if (m->on) {
        key = value = (size_t)(c->n_kv_heads * c->head_dim) * m->size;
    }
    if (m->on)
        rows = (size_t)(p->sequences * p->tokens);
    if (size_mul(rows, key, &p->keys) || size_mul(rows, value, &p->values) ||
        size_add(p->keys, p->values, all) ||
        size_mul(*all, (size_t)c->n_layers, all))
        return err_set(e, E_TEMP, "%lld tokens: too many for memory",
                       (long long)p->tokens);
    return 0;
}

double kv_cache_bytes(const struct model *m, int64_t tokens, int64_t sequences)
{
    struct kv_cache p = { .tokens = tokens, .sequences = sequences };
    size_t all;
    struct err e;

    return find_sizes(&p, m, &all, &e) < 0 ? HUGE_VAL : (double)all;
}

/* Linear attention begins with zeros. */
static int clear_states(struct kv_cache *p, struct err *e)
{
    const struct model *m = p->m;

    if (m->on && p->delta.p)
        return m->on->zero(m->context, p->delta.p, p->delta.cap, e);
    if (p->delta.p)
        memset(p->delta.p, 0, p->delta.cap);
    return 0;
}

int kv_cache_create(struct kv_cache **out, const struct model *m,
                    int64_t tokens, int64_t sequences, struct err *e)
{
    const struct indexer *x = &m->config.indexer;
    struct kv_cache *p;
    size_t all = 0;

    *out = NULL;
    if (sequences > 1 && (m->config.layer_linear || m->config.family->altup ||
                          (x->top_k && tokens > x->top_k)))
        return err_set(e, E_CONFIG, "%s: no cache of several sequences here",
                       m->config.family->model_type);
    if (model_check_length(m, tokens, e) < 0)
        return e->code;
    p = mem_zero(1, sizeof(*p), "keys and values", e);
    if (!p)
        return e->code;
    p->tokens = tokens;
    p->sequences = sequences;
    p->m = m;
    if (find_sizes(p, m, &all, e) < 0 ||
        model_reserve(m, &p->memory, 1, 1, all, "keys and values", e) < 0 ||
        (x->top_k && tokens > x->top_k &&
         buffer_reserve(&p->index, m->config.n_layers * tokens, x->dim,
                        sizeof(float), "keys of the indexer", e) < 0) ||
        (m->config.layer_linear &&
         (model_reserve(m, &p->delta, m->config.n_layers,
                        delta_cached(&m->config.delta), sizeof(float),
                        "states of linear attention", e) < 0 ||
          clear_states(p, e) < 0))) {
        kv_cache_release(p);
        return e->code;
    }
    *out = p;
    return 0;
}

void kv_cache_release(struct kv_cache *p)
{
    if (!p)
        return;
    model_buffer_release(p->m, &p->memory);
    buffer_release(&p->index);
    model_buffer_release(p->m, &p->delta);
    free(p);
}

int64_t kv_cache_length(const struct kv_cache *p)
{
    return p->length;
}

void kv_cache_advance(struct kv_cache *p, int64_t rows)
{
    p->length += rows;
}

/* Zero the host's memory: kernels read whole blocks, and weight 0 times what is
 * there must be 0. */
int kv_cache_clear(struct kv_cache *p, struct err *e)
{
    if (!p->m->on)
        memset(p->memory.p, 0, p->memory.cap);
    p->length = 0;
    return clear_states(p, e);
}
