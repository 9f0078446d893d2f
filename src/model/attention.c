/* attention.c - causal attention of a batch on the host, by blocks.
 *
 * First, keys and values of each block of ATTEND_KEYS positions are
 * normalized, rotated and packed for the kernels (keys by columns), once for
 * all query heads that share them.  Then each block of queries of each head is
 * a piece of work.  Memory: the packed keys and values; no scores. */
#include <math.h>
#include <string.h>

#include "common/math/lanes.h"
#include "common/math/threads.h"
#include "model/internal.h"
#include "model/scratch.h"

/* A block of queries, or of keys, of one sequence. */
struct block {
    int64_t row;   /* first row in the batch */
    int64_t first; /* its position in the sequence */
    int64_t n;
    int64_t keys; /* number of the sequence's first block of keys */
    int64_t slot; /* keys: number of the block in the packed memory */
    int64_t at;   /* keys: index in the block at which its first key goes */
};

/* Head h of row r begins at element r * row + h * head + at. */
struct source {
    const void *p;
    int64_t row, head, at;
};

struct job {
    const struct layer *l;
    const struct state *s;
    const struct block *block; /* blocks of keys, then of queries */
    int64_t n_keys;            /* number of blocks of keys */
    int64_t padded;
    bool pairs; /* packed as pairs of bf16, else f32 */
    lanes_transpose_fn *transpose;
    size_t size; /* bytes of a packed element */
    struct rotation q, k;
    const float *cs; /* cosines and sines of position 0 */
    struct source from_q, from_k, from_v;
    struct source tail;  /* latent attention: rotary part of keys, for all
                          * heads; p NULL: none */
    char *keys, *values; /* packed */
    void *out;
};

/* Divide all sequences into blocks of `size`; returns how many. */
static int64_t cut(const struct state *s, int64_t size, struct block *b)
{
    int64_t n = 0, keys = 0;

    for (int64_t i = 0; i < s->n_sequences; i++) {
        int64_t len = s->first[i + 1] - s->first[i];

        for (int64_t p = 0; p < len; p += size, n++)
            b[n] = (struct block){ .row = s->first[i] + p,
                                   .first = p,
                                   .n = len - p < size ? len - p : size,
                                   .keys = keys,
                                   .slot = n };
        keys += (len + ATTEND_KEYS - 1) / ATTEND_KEYS;
    }
    return n;
}

/* The same for sequences with a KV cache, all of as many tokens: blocks of keys are
 * aligned to those of the cache. */
static int64_t cut_cached(const struct state *s, int64_t size, bool keys,
                          struct block *b)
{
    int64_t n = 0, at = s->cache->length;

    for (int64_t i = 0; i < s->n_sequences; i++) {
        int64_t end = at + s->first[i + 1] - s->first[i];
        int64_t before = i * s->cache->blocks;

        for (int64_t p = at; p < end; n++) {
            int64_t to = keys ? (p / size + 1) * size : p + size;

            to = to < end ? to : end;
            b[n] = (struct block){ .row = s->first[i] + p - at,
                                   .first = p,
                                   .n = to - p,
                                   .keys = before,
                                   .slot = before + p / size,
                                   .at = keys ? p % size : 0 };
            p = to;
        }
    }
    return n;
}

static const float *table_row(const struct job *j, int64_t position)
{
    return j->cs + position * j->l->m->config.rotary;
}

static const void *head_of(const struct model *m, const struct source *s,
                           int64_t row, int64_t head)
{
    return (const char *)s->p +
           (size_t)(row * s->row + head * s->head + s->at) * m->size;
}

/* Where the outputs of the linears are. */
static void find_sources(struct job *j)
{
    const struct model *m = j->l->m;
    const struct model_config *c = &m->config;
    const struct mla *a = &c->mla;
    int64_t d = c->head_dim, kv = a->nope + c->v_dim;

    j->from_q = (struct source){ m->q.p, c->n_heads * d, d, 0 };
    if (a->kv_lora) {
        j->from_k = (struct source){ m->value.p, c->n_heads * kv, kv, 0 };
        j->from_v = (struct source){ m->value.p, c->n_heads * kv, kv, a->nope };
        j->tail =
            (struct source){ m->key.p, a->kv_lora + a->rope, 0, a->kv_lora };
    } else if (c->family->fused_qkv) {
        int64_t row = (c->n_heads + 2 * c->n_kv_heads) * d;
        int64_t k = c->n_heads * d;

        j->from_q.row = row;
        j->from_k = (struct source){ m->q.p, row, d, k };
        j->from_v = (struct source){ m->q.p, row, d, k + c->n_kv_heads * d };
    } else {
        if (c->family->attention_gate)
            j->from_q = (struct source){ m->q.p, c->n_heads * 2 * d, 2 * d, 0 };
        j->from_k = (struct source){ m->key.p, c->n_kv_heads * d, d, 0 };
        j->from_v = (struct source){ m->value.p, c->n_kv_heads * d, d, 0 };
    }
}

/* ---- keys and values ---- */

/* A head's key: in place, or composed in `room`. */
static const void *key_of(const struct job *j, int64_t row, int64_t head,
                          char *room)
{
    const struct model *m = j->l->m;
    const struct mla *a = &m->config.mla;
    const void *k = head_of(m, &j->from_k, row, head);

    if (!j->tail.p)
        return k;
    memcpy(room, k, (size_t)a->nope * m->size);
    memcpy(room + (size_t)a->nope * m->size, head_of(m, &j->tail, row, head),
           (size_t)a->rope * m->size);
    return room;
}

/* 16 keys as pairs, two neighbouring dims in 32 bits, from rows to columns; to
 * [dim/2, ATTEND_KEYS]. */
static void transpose_pairs(const struct job *j, const uint16_t *rows, void *to)
{
    int64_t d = j->l->m->config.head_dim, p = 0;
    const uint32_t *word = (const uint32_t *)(const void *)rows;

    for (; p + LANES <= d / 2; p += LANES) {
        const float *from[LANES];
        float *into[LANES];

        for (int64_t i = 0; i < LANES; i++) {
            from[i] = (const float *)(const void *)(rows + i * d + 2 * p);
            into[i] = (float *)to + (p + i) * ATTEND_KEYS;
        }
        j->transpose(into, from);
    }
    for (; p < d / 2; p++)
        for (int64_t i = 0; i < LANES; i++)
            ((uint32_t *)to)[p * ATTEND_KEYS + i] = word[i * (d / 2) + p];
}

static void pack_key_pairs(const struct job *j, const struct block *b,
                           int64_t head, uint32_t *to)
{
    const struct model *m = j->l->m;
    int64_t d = m->config.head_dim;
    _Alignas(64) uint16_t rows[LANES * HEAD_DIM_MAX];
    float room[HEAD_DIM_MAX];

    for (int64_t i = 0; i < ATTEND_KEYS; i++) {
        uint16_t *row = rows + i % LANES * d;

        if (i < b->n)
            m->k->rotate_bf16(&j->k, key_of(j, b->row + i, head, (char *)room),
                              table_row(j, b->first + i), row);
        else
            memset(row, 0, (size_t)d * sizeof(*row));
        if (i % LANES == LANES - 1)
            transpose_pairs(j, rows, to + i / LANES * LANES);
    }
}

static void pack_keys(const struct job *j, const struct block *b, int64_t head,
                      void *to)
{
    const struct model *m = j->l->m;
    int64_t d = m->config.head_dim;
    float row[HEAD_DIM_MAX], room[HEAD_DIM_MAX], *f = to;

    if (j->pairs) {
        pack_key_pairs(j, b, head, to);
        return;
    }
    memset(to, 0, (size_t)(d * ATTEND_KEYS) * j->size);
    for (int64_t i = 0; i < b->n; i++) {
        const void *src = key_of(j, b->row + i, head, (char *)room);

        m->k->rotate_row(&j->k, src, table_row(j, b->first + i), row);
        for (int64_t p = 0; p < d; p++)
            f[p * ATTEND_KEYS + i] = row[p];
    }
}

static void pack_values(const struct job *j, const struct block *b,
                        int64_t head, void *to)
{
    static const uint16_t none[HEAD_DIM_MAX];
    const struct model *m = j->l->m;
    int64_t d = m->config.v_dim, step = j->pairs ? 2 : 1;

    if (b->n < ATTEND_KEYS || d < j->padded)
        memset(to, 0, (size_t)(ATTEND_KEYS * j->padded) * j->size);
    for (int64_t i = 0; i < b->n; i += step) {
        const void *v = head_of(m, &j->from_v, b->row + i, head);

        if (j->pairs)
            m->k->pair_rows(v,
                            i + 1 < b->n ?
                                head_of(m, &j->from_v, b->row + i + 1, head) :
                                none,
                            d, (uint16_t *)to + i * j->padded);
        else if (!to_f32((float *)to + i * j->padded, v, m->dtype, (size_t)d))
            return; /* not with a float's dtype */
    }
}

/* Append keys and values to a block that has some already, one by one. */
static void pack_on(const struct job *j, const struct block *b, int64_t head,
                    char *keys, char *values)
{
    const struct model *m = j->l->m;
    int64_t d = m->config.head_dim;
    float row[HEAD_DIM_MAX], room[HEAD_DIM_MAX];

    for (int64_t i = 0; i < b->n; i++) {
        const void *k = key_of(j, b->row + i, head, (char *)room);
        const void *v = head_of(m, &j->from_v, b->row + i, head);
        const float *cs = table_row(j, b->first + i);
        int64_t at = b->at + i;

        if (!j->pairs) {
            m->k->rotate_row(&j->k, k, cs, row);
            for (int64_t p = 0; p < d; p++)
                ((float *)(void *)keys)[p * ATTEND_KEYS + at] = row[p];
            if (!to_f32((float *)(void *)values + at * j->padded, v, m->dtype,
                        (size_t)m->config.v_dim))
                return; /* not with a float's dtype */
            continue;
        }
        m->k->rotate_bf16(&j->k, k, cs, (uint16_t *)(void *)row);
        for (int64_t p = 0; p < d / 2; p++)
            memcpy(keys + 4 * (p * ATTEND_KEYS + at), (char *)row + 4 * p, 4);
        for (int64_t p = 0; p < m->config.v_dim; p++)
            ((uint16_t *)(void *)
                 values)[at / 2 * 2 * j->padded + 2 * p + at % 2] =
                ((const uint16_t *)v)[p];
    }
}

static void pack(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct model *m = j->l->m;
    int64_t heads = m->config.n_kv_heads;

    for (size_t t = begin; t < end; t++) {
        int64_t b = (int64_t)t / heads, head = (int64_t)t % heads;
        int64_t at = (head * j->n_keys + j->block[b].slot) * ATTEND_KEYS;
        char *keys = j->keys + (size_t)(at * m->config.head_dim) * j->size;
        char *values = j->values + (size_t)(at * j->padded) * j->size;

        if (j->s->cache) {
            pack_on(j, j->block + b, head, keys, values);
            continue;
        }
        pack_keys(j, j->block + b, head, keys);
        pack_values(j, j->block + b, head, values);
    }
}

/* ---- keys and values that several layers use ---- */

/* Normalize and rotate the keys of a block into their tokens' rows, and put the
 * values behind them. */
static void keep_block(const struct job *j, const struct block *b)
{
    const struct model *m = j->l->m;
    const struct model_config *c = &m->config;
    int64_t d = c->head_dim, all = c->n_kv_heads * d;
    int64_t at = model_row_keys(c, j->l->index);
    float row[HEAD_DIM_MAX];

    for (int64_t i = 0; i < b->n; i++) {
        char *to = state_at(state_x(j->s, b->row + i), m->dtype, at);

        for (int64_t h = 0; h < c->n_kv_heads; h++) {
            m->k->rotate_row(&j->k, head_of(m, &j->from_k, b->row + i, h),
                             table_row(j, b->first + i), row);
            (void)!from_f32(to + (size_t)(h * d) * m->size, m->dtype, row,
                            (size_t)d);
        }
        memcpy(to + (size_t)all * m->size,
               head_of(m, &j->from_v, b->row + i, 0), (size_t)all * m->size);
    }
}

static void keep_blocks(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;

    for (size_t t = begin; t < end; t++)
        keep_block(j, j->block + t);
}

/* Keys and values of n blocks go by the tokens' rows, where the layer is one of
 * several that use the same. */
static void use_rows(struct job *j, int64_t n)
{
    const struct model_config *c = &j->l->m->config;
    int64_t d = c->head_dim, at = model_row_keys(c, j->l->index);

    if (!at)
        return;
    if (!model_layer_shares(c, j->l->index))
        threads_for((size_t)n, 1, keep_blocks, j);
    j->from_k = (struct source){ j->s->x, j->s->row, d, at };
    j->from_v =
        (struct source){ j->s->x, j->s->row, d, at + c->n_kv_heads * d };
    j->k.norm = NULL;
    j->k.rotary = 0;
}

/* ---- queries ---- */

/* Multiply the query of position t by its factor (struct query_growth). */
static void grow_query(const struct job *j, int64_t t, float *q, int64_t row)
{
    const struct model_config *c = &j->l->m->config;
    int64_t d = c->head_dim;
    uint16_t *b = (uint16_t *)(void *)q + row * d;
    float by = query_factor(&c->query_growth, t);

    for (int64_t i = 0; i < d && by != 1; i++)
        if (j->pairs)
            b[i] = bf16_from_f32(f32_from_bf16(b[i]) * by);
        else
            q[row * d + i] =
                j->l->m->bf16 ?
                    f32_from_bf16(bf16_from_f32(q[row * d + i] * by)) :
                    q[row * d + i] * by;
}

/* Normalize and rotate a block of queries, in the kernels' format. */
static void rotate_queries(const struct job *j, const struct block *b,
                           int64_t head, float *q)
{
    const struct model *m = j->l->m;
    int64_t d = m->config.head_dim;

    if (b->n < ATTEND_QUERIES)
        memset(q, 0, sizeof(*q) * (size_t)(ATTEND_QUERIES * d));
    for (int64_t i = 0; i < b->n; i++) {
        const void *src = head_of(m, &j->from_q, b->row + i, head);
        const float *cs = table_row(j, b->first + i);

        if (j->pairs)
            m->k->rotate_bf16(&j->q, src, cs, (uint16_t *)q + i * d);
        else
            m->k->rotate_row(&j->q, src, cs, q + i * d);
        if (m->config.query_growth.scale > 0 && !j->q.rotary)
            grow_query(j, b->first + i, q, i);
    }
}

void attention_gate(const struct model *m, const void *g, int64_t n, float *out)
{
    float by[HEAD_DIM_MAX];

    (void)!to_f32(by, g, m->dtype, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        float s = 1 / (1 + expf(-by[i]));

        if (m->bf16) {
            out[i] = f32_from_bf16(bf16_from_f32(out[i]));
            s = f32_from_bf16(bf16_from_f32(s));
        }
        out[i] *= s;
    }
}

/* The gates of a head, behind its query. */
static const void *gate_of(const struct job *j, int64_t row, int64_t head)
{
    const struct model *m = j->l->m;

    return (const char *)head_of(m, &j->from_q, row, head) +
           (size_t)m->config.head_dim * m->size;
}

/* One block of queries of one head. */
static void attend(const struct job *j, const struct block *b, int64_t head)
{
    const struct model *m = j->l->m;
    const struct model_config *c = &m->config;
    int64_t kv = head / (c->n_heads / c->n_kv_heads), d = c->head_dim;
    int64_t at = (kv * j->n_keys + b->keys) * ATTEND_KEYS;
    float q[ATTEND_QUERIES * HEAD_DIM_MAX], out[ATTEND_QUERIES * HEAD_DIM_MAX];
    int64_t last = model_layer_slides(c, j->l->index) ? c->sliding_window : 0;
    bool chunks = c->family->sliding == SLIDING_CHUNKS;
    struct attend a = {
        .dim = d,
        .padded = j->padded,
        .first = b->first,
        .n = b->n,
        .window = chunks ? 0 : last,
        .chunk = chunks ? last : 0,
        .scale = j->l->m->scale,
        .cap = (float)c->attention_cap,
        .words = m->seen_words,
        .sink = j->l->sinks ? j->l->sinks + head : NULL,
        .q = q,
        .k = j->keys + (size_t)(at * d) * j->size,
        .v = j->values + (size_t)(at * j->padded) * j->size,
        .out = out,
    };

    if (m->seen_words)
        a.seen = (const uint64_t *)m->seen.p + b->row * m->seen_words;
    rotate_queries(j, b, head, q);
    if (j->pairs)
        m->k->attend_pairs(&a);
    else
        m->k->attend(&a);
    for (int64_t i = 0; i < b->n; i++) {
        int64_t v = c->v_dim, to = ((b->row + i) * c->n_heads + head) * v;

        if (c->family->attention_gate)
            attention_gate(m, gate_of(j, b->row + i, head), v,
                           out + i * j->padded);
        if (m->bf16)
            m->k->store_bf16(out + i * j->padded, NULL, v,
                             (uint16_t *)j->out + to);
        else
            m->k->store_f32(out + i * j->padded, NULL, v, (float *)j->out + to);
    }
}

static void attend_parts(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    int64_t heads = j->l->m->config.n_heads;

    for (size_t t = begin; t < end; t++)
        attend(j, j->block + (int64_t)t / heads, (int64_t)t % heads);
}

/* ---- the whole ---- */

static int reserve(struct job *j, struct err *e)
{
    struct model *m = j->l->m;
    const struct state *s = j->s;
    const struct model_config *c = &m->config;
    int64_t longest =
        s->cache ? s->cache->length + s->rows / s->n_sequences : 0;

    for (int64_t i = 0; i < s->n_sequences; i++)
        if (s->first[i + 1] - s->first[i] > longest)
            longest = s->first[i + 1] - s->first[i];
    if (model_rope(m, j->l->index, longest, &j->cs, &j->q.rotary, e) < 0)
        return e->code;
    j->k.rotary = j->q.rotary;
    if (s->cache) {
        j->keys = (char *)s->cache->memory.p +
                  (size_t)j->l->index * (s->cache->keys + s->cache->values);
        j->values = j->keys + s->cache->keys;
        j->n_keys = s->cache->sequences * s->cache->blocks;
        return 0;
    }
    if (buffer_reserve(&m->keys, j->n_keys * ATTEND_KEYS,
                       c->n_kv_heads * c->head_dim, sizeof(float), "keys",
                       e) < 0 ||
        buffer_reserve(&m->values, j->n_keys * ATTEND_KEYS,
                       c->n_kv_heads * j->padded, sizeof(float), "values",
                       e) < 0)
        return e->code;
    j->keys = m->keys.p;
    j->values = m->values.p;
    return 0;
}

bool attention_pairs(const struct model *m)
{
    return m->bf16 && m->k->attend_pairs;
}

int64_t attention_padded(const struct model_config *c)
{
    return (c->v_dim + ATTEND_ALIGN - 1) / ATTEND_ALIGN * ATTEND_ALIGN;
}

int attention_run(struct layer *l, const struct state *s, void *out,
                  struct err *e)
{
    struct model *m = l->m;
    const struct model_config *c = &m->config;
    struct job j = { .l = l, .s = s, .out = out };
    int64_t most = s->rows / ATTEND_QUERIES + 2 * s->n_sequences, n;

    if (m->on)
        return device_attend(l, s, out, e);
    j.q = (struct rotation){ .bf16 = m->bf16,
                             .dim = c->head_dim,
                             .at = c->rotary_at,
                             .pairs = c->rope_pairs,
                             .eps = (float)c->rms_eps };
    j.k = j.q;
    if (c->qk_norm != QK_NORM_FLAT) {
        j.q.norm = l->q_norm;
        j.k.norm = l->k_norm;
    }
    find_sources(&j);
    j.padded = attention_padded(c);
    j.pairs = attention_pairs(m);
    j.transpose = lanes_transpose_best();
    j.size = j.pairs ? sizeof(uint16_t) : sizeof(float);
    if (buffer_reserve(&m->blocks, most, 1, sizeof(struct block), "blocks", e) <
        0)
        return e->code;
    j.block = m->blocks.p;
    n = s->cache ? cut_cached(s, ATTEND_KEYS, true, m->blocks.p) :
                   cut(s, ATTEND_KEYS, m->blocks.p);
    j.n_keys = n;
    if (reserve(&j, e) < 0)
        return e->code;
    use_rows(&j, n);
    threads_for((size_t)(n * c->n_kv_heads), 1, pack, &j);
    n = s->cache ? cut_cached(s, ATTEND_QUERIES, false, m->blocks.p) :
                   cut(s, ATTEND_QUERIES, m->blocks.p);
    threads_for((size_t)(n * c->n_heads), 1, attend_parts, &j);
    return 0;
}
