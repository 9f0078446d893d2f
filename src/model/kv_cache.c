/* kv_cache.c - see model.h: the KV cache. */
#include <stdlib.h>
#include <string.h>

#include "model/delta.h"

/* Bytes of a layer's keys and values, and of all layers. */
static int find_sizes(struct kv_cache *p, const struct model *m, size_t *all,
                      struct err *e)
{
    const struct model_config *c = &m->config;
    size_t element = attention_pairs(m) ? sizeof(uint16_t) : sizeof(float);
    size_t heads = (size_t)c->n_kv_heads * element, rows;

    p->blocks = (p->tokens + ATTEND_KEYS - 1) / ATTEND_KEYS;
    rows = (size_t)p->blocks * ATTEND_KEYS;
    if (size_mul(rows, heads * (size_t)c->head_dim, &p->keys) ||
        size_mul(rows, heads * (size_t)attention_padded(c), &p->values) ||
        size_add(p->keys, p->values, all) ||
        size_mul(*all, (size_t)c->n_layers, all))
        return err_set(e, E_TEMP, "%lld tokens: too many for memory",
                       (long long)p->tokens);
    return 0;
}

int kv_cache_create(struct kv_cache **out, const struct model *m,
                    int64_t tokens, struct err *e)
{
    const struct indexer *x = &m->config.indexer;
    struct kv_cache *p;
    size_t all = 0;

    *out = NULL;
    if (model_check_length(m, tokens, e) < 0)
        return e->code;
    p = mem_zero(1, sizeof(*p), "keys and values", e);
    if (!p)
        return e->code;
    p->tokens = tokens;
    if (find_sizes(p, m, &all, e) < 0 ||
        buffer_reserve(&p->memory, 1, 1, all, "keys and values", e) < 0 ||
        (x->top_k && tokens > x->top_k &&
         buffer_reserve(&p->index, m->config.n_layers * tokens, x->dim,
                        sizeof(float), "keys of the indexer", e) < 0) ||
        (m->config.layer_linear &&
         buffer_reserve(&p->delta, m->config.n_layers,
                        delta_cached(&m->config.delta), sizeof(float),
                        "states of linear attention", e) < 0)) {
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
    buffer_release(&p->memory);
    buffer_release(&p->index);
    buffer_release(&p->delta);
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

/* Zero the memory: kernels read whole blocks, and weight 0 times what is there
 * must be 0. */
void kv_cache_clear(struct kv_cache *p)
{
    memset(p->memory.p, 0, p->memory.cap);
    if (p->delta.p)
        memset(p->delta.p, 0, p->delta.cap);
    p->length = 0;
}
