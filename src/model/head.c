/* head.c - see model.h: embedding, final norm and logits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/threads.h"
#include "model/altup.h"
#include "model/internal.h"

static const char EMBEDDING[] = "model.embed_tokens";

/* ---- embedding ---- */

int model_load_embedding(struct model *m, struct err *e)
{
    const struct model_config *c = &m->config;
    const struct ck_tensor *t;
    char name[MODULE_PATH_MAX];

    if (m->embedding)
        return 0;
    snprintf(name, sizeof(name), "%s.weight", EMBEDDING);
    t = checkpoint_find(m->ck, name);
    if (!t)
        return err_set(e, E_DATA, "'%s' is missing", name);
    if (t->ndim != 2 || t->dims[0] != (uint64_t)c->vocab_size ||
        t->dims[1] != (uint64_t)c->hidden_size)
        return err_set(
            e, E_DATA, "'%s' is not [%lld,%lld], vocab_size by hidden_size",
            name, (long long)c->vocab_size, (long long)c->hidden_size);
    if (!dtype_is_float(t->dtype))
        return err_set(e, E_DATA, "'%s' is %s, no float", name,
                       dtype_name(t->dtype));
    m->embedding = mem_pages((size_t)t->bytes, name, e);
    if (!m->embedding)
        return e->code;
    m->embedding_dtype = t->dtype;
    if (checkpoint_read(m->ck, t, m->embedding, e) < 0 ||
        (c->family->altup && altup_entry_load(m, &m->entry, e) < 0)) {
        model_release_embedding(m);
        return e->code;
    }
    return 0;
}

void model_release_embedding(struct model *m)
{
    free(m->embedding);
    altup_entry_release(m->entry);
    m->embedding = NULL;
    m->entry = NULL;
}

struct embedding {
    const struct model *m;
    const int32_t *tokens;
    char *out;
    float scale; /* with embed_sqrt rounded to bf16, as in transformers */
    struct threads_error error;
};

static int embed_row(const struct embedding *j, size_t i, float *f)
{
    const struct model *m = j->m;
    size_t h = (size_t)m->config.hidden_size;
    size_t row = h * dtype_bits(m->embedding_dtype) / 8;
    const char *from = (const char *)m->embedding + (size_t)j->tokens[i] * row;
    char *to = j->out + i * h * m->size;

    if (m->embedding_dtype == m->dtype && j->scale == 1) {
        memcpy(to, from, row);
        return 0;
    }
    if (!to_f32(f, from, m->embedding_dtype, h))
        return E_BUG;
    for (size_t k = 0; k < h && j->scale != 1; k++)
        f[k] = j->scale * (m->bf16 ? f32_from_bf16(bf16_from_f32(f[k])) : f[k]);
    return from_f32(to, m->dtype, f, h) ? 0 : E_BUG;
}

static void embed_rows(void *ctx, size_t begin, size_t end)
{
    struct embedding *j = ctx;
    struct err e;
    float *f =
        scratch_thread((size_t)j->m->config.hidden_size * sizeof(*f), &e);
    int rc = f ? 0 : e.code;

    for (size_t i = begin; i < end && !rc; i++)
        if ((rc = embed_row(j, i, f)) < 0)
            err_set(&e, rc, "the embedding is no float");
    if (rc < 0)
        threads_error_add(&j->error, begin, &e);
}

int model_check_tokens(const struct model *m, const int32_t *tokens, int64_t n,
                       struct err *e)
{
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= m->config.vocab_size)
            return err_set(e, E_DATA,
                           "token %d at position %lld is not in the "
                           "vocabulary of %lld",
                           tokens[i], (long long)i,
                           (long long)m->config.vocab_size);
    return 0;
}

static float embed_scale(const struct model *m)
{
    float scale = (float)m->config.embed_scale;

    return m->config.family->embed_sqrt && m->bf16 ?
               f32_from_bf16(bf16_from_f32(scale)) :
               scale;
}

static int embed_on_host(const struct model *m, const int32_t *tokens,
                         int64_t n, void *out, struct err *e)
{
    struct embedding j = {
        .m = m, .tokens = tokens, .out = out, .scale = embed_scale(m)
    };
    struct buffer h = { 0 };
    int rc;

    if (m->entry && buffer_reserve(&h, n, m->config.hidden_size, m->size,
                                   "embeddings", e) < 0)
        return e->code;
    if (m->entry)
        j.out = h.p;
    threads_error_init(&j.error);
    /* most of the time: zeroing fresh pages */
    threads_for((size_t)n, 32, embed_rows, &j);
    rc = threads_error_take(&j.error, e);
    if (rc >= 0 && m->entry)
        rc = altup_enter(m->entry, tokens, n, h.p, out, e);
    buffer_release(&h);
    return rc;
}

/* Tokens whose rows are brought to a device at a time. */
enum { EMBED_ROWS = 8192, EMBED_TOKENS = 1 << 20 };

/* to: numbers of rows of the device's table. */
static int embed_part(const struct model *m, const void *table,
                      const int32_t *tokens, int64_t n, int64_t *slot,
                      int64_t *there, void *to, struct err *e)
{
    const struct forward_rows r = { .dtype = m->dtype,
                                    .rows = n,
                                    .n = m->config.hidden_size,
                                    .top_k = 1,
                                    .slot = there };

    for (int64_t i = 0; i < n; i++)
        slot[i] = tokens[i];
    return model_put(m, there, slot, (size_t)n * sizeof(*slot), e) < 0 ?
               e->code :
               m->on->gather(m->context, &r, to, table, e);
}

/* Rows that are the table's own: gathered from the table on the device. */
static int embed_by_table(const struct model *m, const int32_t *tokens,
                          int64_t n, char *out, struct err *e)
{
    size_t row = (size_t)m->config.hidden_size * m->size;
    size_t bytes = (size_t)m->config.vocab_size * row;
    int64_t most = n < EMBED_TOKENS ? n : EMBED_TOKENS;
    int64_t *slot = mem_alloc((size_t)most * sizeof(*slot), "tokens", e);
    void *table = NULL, *there = NULL;
    int rc = slot ? 0 : e->code;

    if (!rc)
        rc = model_alloc(m, &table, bytes, true, NULL, e);
    if (rc >= 0)
        rc = model_alloc(m, &there, (size_t)most * sizeof(*slot), false, NULL,
                         e);
    if (rc >= 0)
        rc = model_put(m, table, m->embedding, bytes, e);
    for (int64_t i = 0; i < n && rc >= 0; i += most)
        rc = embed_part(m, table, tokens + i, n - i < most ? n - i : most, slot,
                        there, out + (size_t)i * row, e);
    model_free(m, table);
    model_free(m, there);
    free(slot);
    return rc;
}

/* A part of the rows after the other, by way of the host. */
static int embed_in_parts(const struct model *m, const int32_t *tokens,
                          int64_t n, char *out, struct err *e)
{
    size_t row = (size_t)model_row(&m->config) * m->size;
    struct buffer part = { 0 };
    int rc = buffer_reserve(&part, n < EMBED_ROWS ? n : EMBED_ROWS, 1, row,
                            "embeddings", e);

    for (int64_t i = 0; i < n && rc >= 0; i += EMBED_ROWS) {
        int64_t k = n - i < EMBED_ROWS ? n - i : EMBED_ROWS;

        rc = embed_on_host(m, tokens + i, k, part.p, e);
        if (rc >= 0)
            rc =
                model_put(m, out + (size_t)i * row, part.p, (size_t)k * row, e);
    }
    buffer_release(&part);
    return rc;
}

int model_embed(const struct model *m, const int32_t *tokens, int64_t n,
                void *out, struct err *e)
{
    return model_check_tokens(m, tokens, n, e) < 0 ?
               e->code :
               embed_on_host(m, tokens, n, out, e);
}

int model_embed_there(const struct model *m, const int32_t *tokens, int64_t n,
                      void *out, struct err *e)
{
    bool own =
        !m->entry && m->embedding_dtype == m->dtype && embed_scale(m) == 1;

    if (!m->on)
        return embed_on_host(m, tokens, n, out, e);
    return own && n >= m->config.vocab_size ?
               embed_by_table(m, tokens, n, out, e) :
               embed_in_parts(m, tokens, n, out, e);
}

/* ---- logits ---- */

struct head {
    struct model *m;
    float *norm;
    struct loaded lm;           /* [vocab_size, hidden_size] */
    struct altup_exit *streams; /* NULL: one residual stream */
};

const char *model_head_module(const struct model *m, struct err *e)
{
    static const char *const stored[] = { "lm_head.weight", "lm_head.qweight",
                                          "lm_head.weight_packed" };

    for (size_t i = 0; i < ARRAY_LEN(stored); i++)
        if (checkpoint_find(m->ck, stored[i]))
            return "lm_head";
    if (m->config.tied)
        return EMBEDDING;
    err_set(e, E_DATA,
            "'lm_head.weight' is missing, and tie_word_embeddings "
            "is not set");
    return NULL;
}

bool model_headless(const struct model *m)
{
    return checkpoint_headless(m->ck) && !m->config.tied;
}

static int load_norm(struct head *h, struct err *e)
{
    struct model *m = h->m;

    if (model_norm_vector(m, "model.norm.weight", m->config.hidden_size,
                          &h->norm, e) < 0)
        return e->code;
    if (model_place(m, (void **)&h->norm,
                    (size_t)m->config.hidden_size * sizeof(*h->norm), e) < 0)
        return e->code;
    return m->config.family->altup ? altup_exit_load(m, &h->streams, e) : 0;
}

static int load_logits(struct head *h, struct err *e)
{
    struct model *m = h->m;
    const char *module = model_head_module(m, e);

    if (!module)
        return e->code;
    h->lm.of.rows = m->config.vocab_size;
    h->lm.of.cols = m->config.hidden_size;
    if (model_weight(m, module, h->lm.of.rows, h->lm.of.cols, &h->lm.w, e) < 0)
        return e->code;
    return loaded_place(m, &h->lm, e);
}

static int load(struct model *m, bool logits, struct head **out, struct err *e)
{
    struct head *h = mem_zero(1, sizeof(*h), "head", e);

    if (!h)
        return e->code;
    h->m = m;
    if (load_norm(h, e) < 0 || (logits && load_logits(h, e) < 0)) {
        head_release(h);
        return e->code;
    }
    *out = h;
    return 0;
}

int model_load_head(struct model *m, struct head **h, struct err *e)
{
    return load(m, true, h, e);
}

int model_load_final_norm(struct model *m, struct head **h, struct err *e)
{
    return load(m, false, h, e);
}

void head_release(struct head *h)
{
    if (!h)
        return;
    model_free(h->m, h->norm);
    loaded_release(&h->lm);
    altup_exit_release(h->streams);
    free(h);
}

int head_norm(const struct head *h, const void *x, int64_t n, void *out,
              struct err *e)
{
    if (h->streams && altup_leave(h->streams, x, n, out, e) < 0)
        return e->code;
    return model_norm(h->m, h->streams ? out : x, h->norm, n, out, e);
}

struct cap_job {
    const struct model_config *c;
    const struct kernels *k;
    float *logits;
    int64_t nv, ld;
};

/* logits *= logit_scale; then the soft cap. */
static void cap_rows(void *ctx, size_t begin, size_t end)
{
    const struct cap_job *j = ctx;
    float scale = (float)j->c->logit_scale, cap = (float)j->c->logit_cap;

    for (size_t r = begin; r < end; r++) {
        float *y = j->logits + (int64_t)r * j->ld;

        if (cap > 0)
            j->k->cap(y, scale, cap, j->nv);
        for (int64_t i = 0; cap <= 0 && i < j->nv; i++)
            y[i] *= scale;
    }
}

/* Of all logits. */
static struct forward_sums sums_of(const struct head *h, const void *normed,
                                   int64_t n)
{
    return (struct forward_sums){ .dtype = h->m->dtype,
                                  .weights = h->m->dtype,
                                  .rows = n,
                                  .all = h->lm.of.rows,
                                  .n = h->lm.of.rows,
                                  .depth = h->lm.of.cols,
                                  .x = normed,
                                  .w = h->lm.w };
}

enum { DRAW_LOGITS = 64 << 20 }; /* numbers, at a time */

static int draw_part(const struct head *h, const void *normed, int64_t n,
                     const double *uniform, const int32_t *banned, int64_t bans,
                     int32_t *ids, struct err *e)
{
    const struct model *m = h->m;
    const struct forward_draw d = { .of = sums_of(h, normed, n),
                                    .scale = (float)m->config.logit_scale,
                                    .cap = (float)m->config.logit_cap,
                                    .uniform = uniform,
                                    .banned = banned,
                                    .bans = bans,
                                    .ids = ids };

    if (m->on->draw(m->context, &d, e) < 0)
        return e->code;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0)
            return err_set(e, E_DATA, "logits are not finite");
    return 0;
}

int head_draw(const struct head *h, const void *normed, int64_t n,
              const double *uniform, const int32_t *banned, int64_t bans,
              int32_t *ids, struct err *e)
{
    const struct model_config *c = &h->m->config;
    int64_t part = DRAW_LOGITS / c->vocab_size + 1;
    int rc = 0;

    for (int64_t at = 0; at < n && rc >= 0; at += part)
        rc = draw_part(h,
                       (const char *)normed +
                           (size_t)(at * c->hidden_size) * h->m->size,
                       n - at < part ? n - at : part, uniform + at, banned,
                       bans, ids + at, e);
    return rc;
}

int head_logits(const struct head *h, const void *normed, int64_t n, int64_t v0,
                int64_t nv, float *logits, int64_t ld, struct err *e)
{
    const struct model_config *c = &h->m->config;
    struct cap_job j = { c, h->m->k, logits, nv, ld };
    struct forward_sums s = sums_of(h, normed, n);
    int rc;

    s.first = v0;
    s.n = nv;
    s.y = logits;
    s.ld = ld;
    rc = product_sums(h->m, &s, e);

    if (rc >= 0 && (c->logit_scale != 1 || c->logit_cap > 0))
        threads_for((size_t)n, 4, cap_rows, &j);
    return rc;
}
