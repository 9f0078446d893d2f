/* fake_attend.c - attention of the fake plug-in: the CPU's, on memory that must be the
 * device's. */
#include <stdlib.h>
#include <string.h>

#include "fake_model.h"

/* Keys are turned: as if they, and values behind them, lay in rows of the batch, of a
 * model whose layer uses another one's. */
static void use_rows(const struct forward_attend *a, struct model_config *c,
                     struct state *s)
{
    c->n_layers = c->altup.shared = c->hidden_size = 1;
    s->row = a->k.row;
    s->x =
        (char *)(uintptr_t)a->k.p - bytes_of(a->dtype, 1, model_row_keys(c, 0));
}

/* The CPU's attention of a model with these sizes, of whole sequences. */
static int attend_whole(const struct forward_attend *a, struct err *e)
{
    struct model m = host_model(a->dtype);
    struct layer l = { .m = &m,
                       .q_norm = (float *)(uintptr_t)a->q_norm,
                       .k_norm = (float *)(uintptr_t)a->k_norm,
                       .sinks = (float *)(uintptr_t)a->sinks };
    const struct family chunks = { .sliding = SLIDING_CHUNKS };
    int64_t last = a->window + a->chunk;
    struct state s = { .dtype = a->dtype,
                       .n_sequences = a->n_sequences,
                       .rows = a->rows,
                       .first = (int64_t *)(uintptr_t)a->first };
    struct model_config *config = &m.config;
    bool slides = true;
    int64_t longest = 0;
    int rc;

    config->n_heads = a->n_heads;
    config->n_kv_heads = a->n_kv_heads;
    config->head_dim = a->head_dim;
    config->v_dim = a->v_dim;
    config->rotary = a->rotary;
    config->rotary_at = a->rotary_at;
    config->rope_pairs = a->pairs;
    config->rms_eps = (double)a->eps;
    config->qk_norm = a->q_norm ? QK_NORM_HEAD : QK_NORM_NONE;
    config->attention_cap = (double)a->cap;
    config->family = a->chunk ? &chunks : config->family;
    config->sliding_window = last;
    config->layer_slides = last ? &slides : NULL;
    m.scale = a->scale;
    for (int64_t i = 0; i < a->n_sequences; i++)
        if (a->first[i + 1] - a->first[i] > longest)
            longest = a->first[i + 1] - a->first[i];
    m.rope =
        (struct rope_table){ .cs = (float *)(uintptr_t)a->cs, .n = longest };
    m.q.p = (void *)(uintptr_t)a->q.p;
    if (a->tail.p) {
        config->mla.rope = a->tail_dim;
        config->mla.nope = a->head_dim - a->tail_dim;
        config->mla.kv_lora = a->tail.row - a->tail_dim;
        m.value.p = (void *)(uintptr_t)a->k.p;
        m.key.p =
            (char *)(uintptr_t)a->tail.p - (size_t)config->mla.kv_lora * m.size;
    } else {
        m.key.p = (void *)(uintptr_t)a->k.p;
        m.value.p = (void *)(uintptr_t)a->v.p;
    }
    if (a->turned)
        use_rows(a, config, &s);
    rc = attention_run(&l, &s, a->out, e);
    buffer_release(&m.keys);
    buffer_release(&m.values);
    buffer_release(&m.blocks);
    return rc;
}

/* A sequence that goes on: all of it, of which the queries before are zeros.  Keys
 * are not rotated in place. */
static int attend_behind(const struct forward_attend *a, struct err *e)
{
    int64_t all = a->past + a->rows, first[2] = { 0, all };
    size_t q = bytes_of(a->dtype, 1, a->q.row);
    size_t out = bytes_of(a->dtype, 1, a->n_heads * a->v_dim);
    char *room = mem_zero((size_t)all, q + out, "fake", e);
    char *outs = room + (size_t)all * q;
    struct forward_attend w = *a;
    int rc;

    if (!room)
        return e->code;
    memcpy(room + (size_t)a->past * q, a->q.p, (size_t)a->rows * q);
    w.q.p = room;
    w.rows = all;
    w.first = first;
    w.out = outs;
    rc = attend_whole(&w, e);
    memcpy(a->out, outs + (size_t)a->past * out, (size_t)a->rows * out);
    free(room);
    return rc;
}

/* Multiply queries by their factors, in place: they are not turned. */
static void grow(const struct forward_attend *a)
{
    int64_t d = a->head_dim, sequence = 0;
    float q[HEAD_DIM_MAX];

    for (int64_t r = 0; r < a->rows; r++) {
        while (a->first[sequence + 1] <= r)
            sequence++;
        for (int64_t h = 0; h < a->n_heads; h++) {
            char *at = (char *)(uintptr_t)a->q.p +
                       bytes_of(a->dtype, 1, r * a->q.row + h * a->q.head);
            float by = a->growth[a->past + r - a->first[sequence]];

            (void)!to_f32(q, at, a->dtype, (size_t)d);
            for (int64_t i = 0; i < d; i++)
                q[i] *= by;
            (void)!from_f32(at, a->dtype, q, (size_t)d);
        }
    }
}

/* h's heads, n of dim elements, without gaps between them, if there are any; *room:
 * their memory, free() it. */
static int close_gaps(const struct forward_attend *a, struct forward_heads *h,
                      int64_t rows, int64_t n, void **room, struct err *e)
{
    int64_t dim = a->head_dim;

    *room = NULL;
    if (h->row == n * dim && h->head == dim)
        return 0;
    *room = mem_pages(bytes_of(a->dtype, rows, n * dim), "fake", e);
    for (int64_t i = 0; *room && i < rows * n; i++)
        memcpy((char *)*room + bytes_of(a->dtype, i, dim),
               (const char *)h->p +
                   bytes_of(a->dtype, 1, i / n * h->row + i % n * h->head),
               bytes_of(a->dtype, 1, dim));
    *h = (struct forward_heads){ *room, n * dim, dim };
    return *room ? 0 : e->code;
}

/* Turned keys and their values: in rows that have room in front, see use_rows(). */
static int join_rows(struct forward_attend *a, void **room, struct err *e)
{
    int64_t n = a->n_kv_heads * a->head_dim, row = 4 * n + 1;
    int64_t rows = a->past + a->rows;
    int64_t at = 1 + (a->window || a->chunk ? 2 * n : 0);

    *room = mem_zero((size_t)rows, bytes_of(a->dtype, 1, row), "fake", e);
    for (int64_t i = 0; *room && i < rows; i++) {
        char *to = (char *)*room + bytes_of(a->dtype, 1, i * row + at);

        memcpy(to, (const char *)a->k.p + bytes_of(a->dtype, 1, i * a->k.row),
               bytes_of(a->dtype, 1, n));
        memcpy(to + bytes_of(a->dtype, 1, n),
               (const char *)a->v.p + bytes_of(a->dtype, 1, i * a->v.row),
               bytes_of(a->dtype, 1, n));
    }
    a->k = (struct forward_heads){ (char *)*room + bytes_of(a->dtype, 1, at),
                                   row, a->head_dim };
    return *room ? 0 : e->code;
}

static int attend_heads(struct forward_attend a, struct err *e)
{
    void *q, *k = NULL, *v = NULL;
    int rc = close_gaps(&a, &a.q, a.rows, a.n_heads, &q, e);

    if (rc >= 0 && a.turned)
        rc = join_rows(&a, &k, e);
    else if (rc >= 0 && !a.tail.p)
        rc = close_gaps(&a, &a.k, a.past + a.rows, a.n_kv_heads, &k, e);
    if (rc >= 0 && !a.tail.p && !a.turned)
        rc = close_gaps(&a, &a.v, a.past + a.rows, a.n_kv_heads, &v, e);
    if (rc >= 0)
        rc = a.past ? attend_behind(&a, e) : attend_whole(&a, e);
    free(q);
    free(k);
    free(v);
    return rc;
}

static struct forward_heads behind(const struct forward_attend *a,
                                   struct forward_heads h, int64_t rows)
{
    h.p = h.p ? (const char *)h.p + bytes_of(a->dtype, rows, h.row) : NULL;
    return h;
}

/* Sequences that go on and whose keys lie apart, one after the other.  fake_turn() has
 * left a tail as it was. */
static int attend_each(const struct forward_attend *a, struct err *e)
{
    for (int64_t i = 0; i < a->n_sequences; i++) {
        int64_t at = a->first[i], first[2] = { 0, a->first[i + 1] - at };
        struct forward_attend w = *a;

        w.n_sequences = 1;
        w.first = first;
        w.rows = first[1];
        w.turned = !a->tail.p;
        w.q = behind(a, a->q, at);
        w.k = behind(a, a->k, i * a->each);
        w.v = behind(a, a->v, i * a->each);
        w.tail = behind(a, a->tail, i * a->each);
        w.out = (char *)a->out + bytes_of(a->dtype, at, a->n_heads * a->v_dim);
        if (attend_heads(w, e) < 0)
            return e->code;
    }
    return 0;
}

int fake_attend(struct cuda_context *c, const struct forward_attend *a,
                struct err *e)
{
    int64_t all = a->each ? a->n_sequences * a->each : a->past + a->rows;
    int64_t longest = 0;

    (void)c;
    for (int64_t i = 0; i < a->n_sequences; i++)
        if (a->past + a->first[i + 1] - a->first[i] > longest)
            longest = a->past + a->first[i + 1] - a->first[i];
    if (fake_must_own(a->q.p, bytes_of(a->dtype, a->rows, a->q.row), "attend",
                      e) < 0 ||
        fake_must_own(a->k.p, bytes_of(a->dtype, all - 1, a->k.row), "attend",
                      e) < 0 ||
        fake_must_own(a->sinks, a->sinks ? (size_t)a->n_heads * 4 : 0, "attend",
                      e) < 0 ||
        fake_must_own(a->growth, a->growth ? (size_t)longest * 4 : 0, "attend",
                      e) < 0 ||
        fake_must_own(a->q_norm, a->q_norm ? (size_t)a->head_dim * 4 : 0,
                      "attend", e) < 0 ||
        fake_must_own(a->cs, (size_t)(longest * a->rotary) * 4, "attend", e) <
            0 ||
        fake_must_own(a->out,
                      bytes_of(a->dtype, a->rows, a->n_heads * a->v_dim),
                      "attend", e) < 0)
        return e->code;
    if (a->growth)
        grow(a);
    return a->each ? attend_each(a, e) : attend_heads(*a, e);
}
