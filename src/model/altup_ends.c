/* altup_ends.c - see altup.h: tokens to rows, and rows to the final norm. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/threads.h"
#include "model/altup.h"

/* Lengths of streams are at least this. */
#define LENGTH_MIN 1e-5

/* Products T[i] of streams 1 .. n - 1. */
struct projections {
    struct loaded *of;
    int64_t n;
};

static int load_projections(struct model *m, const char *name,
                            struct projections *t, struct err *e)
{
    int64_t h = m->config.hidden_size;

    t->n = m->config.altup.n - 1;
    t->of = mem_zero((size_t)t->n + 1, sizeof(*t->of), "streams", e);
    for (int64_t i = 0; t->of && i < t->n; i++) {
        struct linear *l = &t->of[i].of;

        *l = (struct linear){ .layer = -1, .expert = -1, .rows = h, .cols = h };
        snprintf(l->module, sizeof(l->module), "model.%s.%lld", name,
                 (long long)i);
        if (model_load_linear(m, NULL, &t->of[i], e) < 0)
            return e->code;
    }
    return t->of ? 0 : e->code;
}

static void release_projections(struct projections *t)
{
    for (int64_t i = 0; t->of && i < t->n; i++)
        loaded_release(&t->of[i]);
    free(t->of);
}

static const void *row_at(const struct model *m, const void *p, int64_t row,
                          int64_t r)
{
    return (const char *)p + (size_t)(row * r) * m->size;
}

/* Root of the mean square of x [H]; h: scratch [H], x in f32. */
static double length_of(const struct model *m, const void *x, float *h)
{
    int64_t n = m->config.hidden_size;
    double sum = 0;

    (void)!to_f32(h, x, m->dtype, (size_t)n);
    for (int64_t k = 0; k < n; k++)
        sum += (double)h[k] * h[k];
    return sqrt(sum / (double)n);
}

/* f[H] = x, as long as `length`. */
static void as_long(const struct model *m, const void *x, double length,
                    float *f)
{
    double own = fmax(length_of(m, x, f), sqrt(LENGTH_MIN));

    for (int64_t k = 0; k < m->config.hidden_size; k++)
        f[k] = (float)(f[k] * (length / own));
}

/* m as it is where layers run on the host. */
static struct model model_on_host(const struct model *m)
{
    struct model host = *m;

    host.on = NULL;
    return host;
}

/* ---- in front of the first layer ---- */

struct altup_entry {
    struct model m; /* on the host, wherever layers run */
    struct projections streams;
    struct loaded inputs;          /* M [n_layers * inputs, H] */
    float *norm;                   /* [inputs] */
    const struct ck_tensor *table; /* E [vocab_size, n_layers * inputs] */
};

static int find_table(struct altup_entry *w, struct err *e)
{
    static const char name[] = "model.embed_tokens_per_layer.weight";
    const struct model_config *c = &w->m.config;
    const struct ck_tensor *t = w->table = checkpoint_find(w->m.ck, name);

    if (!t)
        return err_set(e, E_DATA, "'%s' is missing", name);
    if (t->ndim != 2 || t->dims[0] != (uint64_t)c->altup.vocab_size ||
        t->dims[1] != (uint64_t)(c->n_layers * c->altup.inputs) ||
        !dtype_is_float(t->dtype))
        return err_set(e, E_DATA,
                       "'%s' is no table of floats, "
                       "vocab_size_per_layer_input %lld by "
                       "hidden_size_per_layer_input %lld of each layer",
                       name, (long long)c->altup.vocab_size,
                       (long long)c->altup.inputs);
    return checkpoint_has_rows(t) ?
               0 :
               err_set(e, E_CONFIG,
                       "'%s' is stored so that its rows cannot be read one by "
                       "one",
                       name);
}

int altup_entry_load(struct model *m, struct altup_entry **out, struct err *e)
{
    const struct model_config *c = &m->config;
    struct altup_entry *w = *out = mem_zero(1, sizeof(*w), "streams", e);

    if (!w)
        return e->code;
    w->m = model_on_host(m);
    w->inputs.of = (struct linear){ .layer = -1,
                                    .expert = -1,
                                    .rows = c->n_layers * c->altup.inputs,
                                    .cols = c->hidden_size };
    strcpy(w->inputs.of.module, "model.per_layer_model_projection");
    if (find_table(w, e) < 0 ||
        load_projections(&w->m, "altup_projections", &w->streams, e) < 0 ||
        model_load_linear(&w->m, NULL, &w->inputs, e) < 0)
        return e->code;
    return model_norm_vector(m, "model.per_layer_projection_norm.weight",
                             c->altup.inputs, &w->norm, e);
}

void altup_entry_release(struct altup_entry *w)
{
    if (!w)
        return;
    release_projections(&w->streams);
    loaded_release(&w->inputs);
    free(w->norm);
    free(w);
}

/* Rows of a piece of tokens. */
struct piece {
    const struct altup_entry *w;
    const void *h;       /* [n, H] */
    const void *product; /* [n, ...], of the weights at hand */
    const char *table;   /* [n, n_layers * inputs], as stored */
    int64_t stream;
    char *out;
};

static void *out_row(const struct piece *p, int64_t r, int64_t at)
{
    const struct model *m = &p->w->m;

    return state_at(p->out, m->dtype, r * model_row(&m->config) + at);
}

/* Stream 0, and zeros where layers write. */
static void first_row(const void *ctx, int64_t r, float *work)
{
    const struct piece *p = ctx;
    const struct model *m = &p->w->m;
    const struct model_config *c = &m->config;

    (void)work;
    memset(out_row(p, r, 0), 0, (size_t)model_row(c) * m->size);
    memcpy(out_row(p, r, model_row_stream(c, 0)),
           row_at(m, p->h, c->hidden_size, r),
           (size_t)c->hidden_size * m->size);
}

static void stream_row(const void *ctx, int64_t r, float *work)
{
    const struct piece *p = ctx;
    const struct model *m = &p->w->m;
    int64_t h = m->config.hidden_size;
    double length = length_of(m, row_at(m, p->h, h, r), work);

    as_long(m, row_at(m, p->product, h, r), length, work);
    (void)!from_f32(out_row(p, r, model_row_stream(&m->config, p->stream)),
                    m->dtype, work, (size_t)h);
}

/* The inputs of all layers; work: two layers'. */
static void input_row(const void *ctx, int64_t r, float *work)
{
    const struct piece *p = ctx;
    const struct model *m = &p->w->m;
    const struct model_config *c = &m->config;
    int64_t n = c->altup.inputs, all = n * c->n_layers;
    enum dtype stored = p->w->table->dtype;
    const char *from = p->table + (size_t)(r * all) * dtype_bits(stored) / 8;
    double root = sqrt((double)c->hidden_size), scale = sqrt((double)n);
    float *own = work, *other = work + n;

    for (int64_t i = 0; i < c->n_layers; i++) {
        double squares = 0, by;

        (void)!to_f32(own, row_at(m, p->product, 1, r * all + i * n), m->dtype,
                      (size_t)n);
        (void)!to_f32(other, from + (size_t)(i * n) * dtype_bits(stored) / 8,
                      stored, (size_t)n);
        for (int64_t k = 0; k < n; k++)
            squares += pow(own[k] / root, 2);
        by = 1 / (root * sqrt(squares / (double)n + c->rms_eps));
        for (int64_t k = 0; k < n; k++)
            own[k] = (float)((own[k] * by * p->w->norm[k] + scale * other[k]) *
                             sqrt(0.5));
        (void)!from_f32(out_row(p, r, model_row_input(c, i)), m->dtype, own,
                        (size_t)n);
    }
}

/* Rows of the table for n tokens; those beyond it have token 0's. */
static int read_table(const struct altup_entry *w, const int32_t *tokens,
                      int64_t n, char *to, struct err *e)
{
    const struct ck_tensor *t = w->table;
    size_t row = (size_t)t->dims[1] * dtype_bits(t->dtype) / 8;

    for (int64_t i = 0; i < n; i++) {
        uint64_t id = (uint64_t)tokens[i];

        if (checkpoint_read_rows(w->m.ck, t, id < t->dims[0] ? id : 0, 1,
                                 to + (size_t)i * row, e) < 0)
            return e->code;
    }
    return 0;
}

/* The rows of a piece; product: scratch. */
static int enter_piece(struct piece *p, const int32_t *tokens, int64_t n,
                       struct buffer *table, struct buffer *product,
                       struct err *e)
{
    const struct altup_entry *w = p->w;
    const struct model *m = &w->m;
    const struct model_config *c = &m->config;

    if (buffer_reserve(table, n, w->inputs.of.rows,
                       dtype_bits(w->table->dtype) / 8, "inputs of layers",
                       e) < 0 ||
        read_table(w, tokens, n, table->p, e) < 0 ||
        altup_rows(n, 1, first_row, p, e) < 0)
        return e->code;
    p->table = table->p;
    for (p->stream = 1; p->stream < c->altup.n; p->stream++) {
        if (product_into(product, m, &w->streams.of[p->stream - 1], p->h, n,
                         "streams", e) < 0)
            return e->code;
        p->product = product->p;
        if (altup_rows(n, c->hidden_size, stream_row, p, e) < 0)
            return e->code;
    }
    if (product_into(product, m, &w->inputs, p->h, n, "inputs of layers", e) <
        0)
        return e->code;
    p->product = product->p;
    return altup_rows(n, 2 * c->altup.inputs, input_row, p, e);
}

int altup_enter(const struct altup_entry *w, const int32_t *tokens, int64_t n,
                const void *h, void *out, struct err *e)
{
    enum { PIECE = 512 };
    const struct model *m = &w->m;
    struct buffer table = { 0 }, product = { 0 };
    int rc = 0;

    for (int64_t at = 0; at < n && rc >= 0; at += PIECE) {
        struct piece p = {
            .w = w,
            .h = row_at(m, h, m->config.hidden_size, at),
            .out = (char *)out + (size_t)(at * model_row(&m->config)) * m->size
        };

        rc = enter_piece(&p, tokens + at, n - at < PIECE ? n - at : PIECE,
                         &table, &product, e);
    }
    buffer_release(&table);
    buffer_release(&product);
    return rc;
}

/* ---- behind the last layer ---- */

struct altup_exit {
    struct model m;            /* on the host, wherever layers run */
    const struct model *there; /* where they run */
    struct projections streams;
};

int altup_exit_load(struct model *m, struct altup_exit **out, struct err *e)
{
    struct altup_exit *w = *out = mem_zero(1, sizeof(*w), "streams", e);

    if (!w)
        return e->code;
    w->m = model_on_host(m);
    w->there = m;
    return load_projections(&w->m, "altup_unembed_projections", &w->streams, e);
}

void altup_exit_release(struct altup_exit *w)
{
    if (w)
        release_projections(&w->streams);
    free(w);
}

struct leaving {
    const struct model *m;
    const void *x; /* [n, model_row()] */
    int64_t stream;
    void *own;  /* [n, H]: the stream alone, or its product */
    float *sum; /* [n, H] */
};

static const void *stream_of(const struct leaving *p, int64_t r, int64_t i)
{
    const struct model_config *c = &p->m->config;

    return row_at(p->m, p->x, 1, r * model_row(c) + model_row_stream(c, i));
}

static void take_row(const void *ctx, int64_t r, float *work)
{
    const struct leaving *p = ctx;
    size_t bytes = (size_t)p->m->config.hidden_size * p->m->size;

    (void)work;
    memcpy((char *)p->own + (size_t)r * bytes, stream_of(p, r, p->stream),
           bytes);
}

/* sum += the stream, as long as stream 0. */
static void sum_row(const void *ctx, int64_t r, float *work)
{
    const struct leaving *p = ctx;
    int64_t h = p->m->config.hidden_size;
    double length = length_of(p->m, stream_of(p, r, 0), work);
    float *sum = p->sum + r * h;

    if (p->stream)
        as_long(p->m, row_at(p->m, p->own, h, r), length, work);
    for (int64_t k = 0; k < h; k++)
        sum[k] = (p->stream ? sum[k] : 0) + work[k];
}

/* Behind all sums: out may be x. */
static void mean_row(const void *ctx, int64_t r, float *work)
{
    const struct leaving *p = ctx;
    int64_t h = p->m->config.hidden_size;

    for (int64_t k = 0; k < h; k++)
        work[k] = p->sum[r * h + k] / (float)p->m->config.altup.n;
    (void)!from_f32((char *)p->own + (size_t)(r * h) * p->m->size, p->m->dtype,
                    work, (size_t)h);
}

static int leave(const struct altup_exit *w, const void *x, int64_t n,
                 void *out, struct err *e)
{
    const struct model *m = &w->m;
    int64_t h = m->config.hidden_size;
    struct buffer sum = { 0 }, own = { 0 }, product = { 0 };
    struct leaving p = { .m = m, .x = x };
    int rc = buffer_reserve(&sum, n, h, sizeof(float), "streams", e) < 0 ||
                     buffer_reserve(&own, n, h, m->size, "streams", e) < 0 ?
                 e->code :
                 0;

    p.sum = sum.p;
    for (; rc >= 0 && p.stream <= w->streams.n; p.stream++) {
        p.own = own.p;
        if (p.stream && (altup_rows(n, 1, take_row, &p, e) < 0 ||
                         product_into(&product, m, &w->streams.of[p.stream - 1],
                                      own.p, n, "streams", e) < 0))
            rc = e->code;
        p.own = product.p;
        if (rc >= 0)
            rc = altup_rows(n, h, sum_row, &p, e);
    }
    p.own = out;
    if (rc >= 0)
        rc = altup_rows(n, h, mean_row, &p, e);
    buffer_release(&sum);
    buffer_release(&own);
    buffer_release(&product);
    return rc;
}

int altup_leave(const struct altup_exit *w, const void *x, int64_t n, void *out,
                struct err *e)
{
    const struct model *m = w->there;
    size_t h = (size_t)(n * m->config.hidden_size) * m->size;
    struct buffer rows = { 0 };
    int rc;

    if (!m->on)
        return leave(w, x, n, out, e);
    rc = buffer_reserve(&rows, n, model_row(&m->config), m->size, "streams", e);
    if (rc >= 0)
        rc = model_get(m, rows.p, x,
                       (size_t)(n * model_row(&m->config)) * m->size, e);
    if (rc >= 0)
        rc = leave(w, rows.p, n, rows.p, e);
    if (rc >= 0)
        rc = model_put(m, out, rows.p, h, e);
    buffer_release(&rows);
    return rc;
}
