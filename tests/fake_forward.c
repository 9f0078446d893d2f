/* fake_forward.c - the forward pass of the fake plug-in: operations are the CPU's,
 * so that results are equal to the CPU's to the bit. */
#include <stdlib.h>
#include <string.h>

#include "common/math/bf16_gemm.h"
#include "common/math/blas.h"
#include "common/math/quant.h"
#include "common/math/threads.h"
#include "fake_cuda.h"
#include "model/forward_table.h"
#include "model/internal.h"
#include "model/expert_rows.h"
#include "model/moe.h"
#include "w4a16/w4a16.h"

static struct model host_model(enum dtype t)
{
    static const struct family plain;

    return (struct model){ .config = { .family = &plain },
                           .dtype = t,
                           .bf16 = t == DT_BF16,
                           .size = t == DT_BF16 ? 2 : 4,
                           .k = kernels_best() };
}

/* The same with gates that are applied so; of: its family. */
static struct model gating_model(enum dtype t, const struct forward_gating *g,
                                 struct family *of)
{
    struct model m = host_model(t);

    *of = (struct family){ .act = g->act };
    m.config.family = of;
    m.config.gate_alpha = (double)g->alpha;
    m.config.gate_limit = (double)g->limit;
    return m;
}

static size_t bytes_of(enum dtype t, int64_t rows, int64_t n)
{
    return (size_t)(rows * n) * (t == DT_BF16 ? 2 : 4);
}

/* Packed as the CPU wants it, which the tool must not look at. */
static int fake_weight(struct cuda_context *c, enum dtype t, int64_t rows,
                       int64_t depth, const void *host, void **w, struct err *e)
{
    struct model m = host_model(t);
    size_t n = bytes_of(t, rows, depth), packed;
    void *copy = mem_pages(n, "fake", e);
    bool spilled;
    int rc = copy ? 0 : e->code;

    if (rc < 0)
        return rc;
    memcpy(copy, host, n);
    rc = product_pack(&m, rows, depth, &copy, e);
    packed = t == DT_BF16 ? bf16_gemm_packed(rows, depth) * 2 : n;
    if (rc >= 0)
        rc = fake_alloc(c, w, packed, false, &spilled, e);
    if (rc >= 0)
        memcpy(*w, copy, packed);
    free(copy);
    return rc;
}

static int fake_codes(struct cuda_context *c, const struct forward_codes *a,
                      void **w, struct err *e)
{
    size_t n = (size_t)a->depth, groups = quant_groups(n, a->group);
    void *host = mem_pages(bytes_of(a->dtype, a->rows, a->depth), "fake", e);
    uint8_t *code = malloc(n);
    float *row = malloc(n * sizeof(*row));
    int rc = host && code && row ? 0 : e->code;

    for (size_t r = 0; rc >= 0 && r < (size_t)a->rows; r++) {
        quant_unpack_row(code, (const uint8_t *)a->nibbles + r * (n / 2), n, 4);
        quant_dequantize_row(row, code, n, a->meta + r * groups, a->group,
                             a->scale_dtype);
        if (!from_f32((char *)host + bytes_of(a->dtype, 1, (int64_t)(r * n)),
                      a->dtype, row, n))
            rc = err_set(e, E_BUG, "fake: codes: no elements");
    }
    if (rc >= 0)
        rc = fake_weight(c, a->dtype, a->rows, a->depth, host, w, e);
    free(host);
    free(code);
    free(row);
    return rc;
}

static int fake_fp8(struct cuda_context *c, const struct fp8_matrix *m,
                    void **w, struct err *e)
{
    void *host = mem_pages(m->rows * m->cols * 2, "fake", e);
    int rc = host ? 0 : e->code;

    fake_note("widen", 0, m->rows, m->cols);
    if (host)
        fp8_to_bf16(host, m);
    if (host)
        rc = fake_weight(c, DT_BF16, (int64_t)m->rows, (int64_t)m->cols, host,
                         w, e);
    free(host);
    return rc;
}

/* The CPU's, of codes that are copied to memory of the device. */
struct cuda_w4 {
    struct forge_w4a16 *w;
    void *codes;
};

static void fake_drop(struct cuda_context *c, struct cuda_w4 *w)
{
    if (!w)
        return;
    forge_w4a16_release(w->w);
    fake_release(c, w->codes);
    free(w);
}

static int fake_linear(struct cuda_context *c,
                       const struct forge_w4a16_linear *l, struct cuda_w4 **out,
                       struct err *e)
{
    size_t bytes = (size_t)(l->layout == FORGE_W4A16_AWQ ?
                                l->inputs * (l->outputs / 8) :
                                (l->inputs + 7) / 8 * l->outputs) *
                   4;
    struct cuda_w4 *w = mem_zero(1, sizeof(*w), "fake", e);
    struct forge_w4a16_linear mine = *l;
    bool spilled;
    int rc = w ? fake_operation("linear", e) : e->code;

    if (rc >= 0)
        rc = fake_alloc(c, &w->codes, bytes, false, &spilled, e);
    if (rc >= 0) {
        memcpy(w->codes, l->codes, bytes);
        mine.codes = w->codes;
        rc = w4_prepare(&w->w, &mine, e);
    }
    if (rc < 0) {
        fake_drop(c, w);
        return rc;
    }
    *out = w;
    return 0;
}

static int fake_norm(struct cuda_context *c, const struct forward_norm *a,
                     struct err *e)
{
    struct model m = host_model(a->dtype);

    (void)c;
    if (fake_must_own(a->x, bytes_of(a->dtype, a->rows - 1, a->ld), "norm", e) <
            0 ||
        fake_must_own(a->out, bytes_of(a->dtype, a->rows, a->n), "norm", e) <
            0 ||
        fake_must_own(a->w, (size_t)a->n * 4, "norm", e) < 0)
        return e->code;
    return model_norm_rows(&m,
                           &(struct norm){ .x = a->x,
                                           .rows = a->rows,
                                           .n = a->n,
                                           .ld = a->ld,
                                           .w = a->w,
                                           .eps = a->eps,
                                           .out = a->out },
                           e);
}

/* *copy: of weights that fake_is_tuned(), packed; else NULL. */
static int pack_tuned(const struct model *m, struct loaded *l, void **copy,
                      struct err *e)
{
    size_t n = bytes_of(m->dtype, l->of.rows, l->of.cols);

    *copy = NULL;
    if (m->dtype != DT_BF16 || !l->w || !fake_is_tuned(l->w))
        return 0;
    *copy = mem_pages(n, "fake", e);
    if (!*copy)
        return e->code;
    memcpy(*copy, l->w, n);
    if (product_pack(m, l->of.rows, l->of.cols, copy, e) < 0)
        return e->code;
    l->w = *copy;
    return 0;
}

static int fake_product(struct cuda_context *c, const struct forward_product *a,
                        struct err *e)
{
    struct family family;
    struct model m = gating_model(a->dtype, &a->gating, &family);
    struct loaded first = { .of = { .rows = a->n, .cols = a->depth },
                            .w = (void *)(uintptr_t)a->w,
                            .q = a->codes ? a->codes->w : NULL,
                            .bias = (float *)(uintptr_t)a->bias };
    struct loaded second = first;
    struct product p = { .m = &m,
                         .first = &first,
                         .second =
                             a->second || a->second_codes ? &second : NULL,
                         .x = a->x,
                         .rows = a->rows,
                         .out = a->out,
                         .add = a->add };

    void *copy[2] = { NULL, NULL };
    int rc;

    (void)c;
    if (fake_must_own(a->x, bytes_of(a->dtype, a->rows, a->depth), "product",
                      e) < 0 ||
        fake_must_own(a->out, bytes_of(a->dtype, a->rows, a->n), "product", e) <
            0 ||
        fake_must_own(a->bias, a->bias ? (size_t)a->n * 4 : 0, "product", e) <
            0 ||
        fake_must_own(a->codes ? a->codes->codes : a->w, 1, "product", e) < 0 ||
        blas_open(e) < 0)
        return e->code;
    second.w = (void *)(uintptr_t)a->second;
    second.q = a->second_codes ? a->second_codes->w : NULL;
    second.bias = (float *)(uintptr_t)a->second_bias;
    rc = pack_tuned(&m, &first, &copy[0], e) < 0 ||
                 pack_tuned(&m, &second, &copy[1], e) < 0 ?
             e->code :
             product_run(&p, e);
    free(copy[0]);
    free(copy[1]);
    return rc;
}

static int fake_pair(struct cuda_context *c, const struct forward_pair *a,
                     struct err *e)
{
    struct family family;
    struct model m = gating_model(a->dtype, &a->gating, &family);

    (void)c;
    if (fake_must_own(a->g, bytes_of(a->dtype, a->rows - 1, a->ldg), "pair",
                      e) < 0 ||
        fake_must_own(a->u, bytes_of(a->dtype, a->rows - 1, a->ldu), "pair",
                      e) < 0 ||
        fake_must_own(a->out, bytes_of(a->dtype, a->rows, a->n), "pair", e) < 0)
        return e->code;
    return gate_pair(&m,
                     &(struct gate_pair){ .g = a->g,
                                          .u = a->u,
                                          .ldg = a->ldg,
                                          .ldu = a->ldu,
                                          .rows = a->rows,
                                          .n = a->n,
                                          .out = a->out },
                     e);
}

static int fake_sums(struct cuda_context *c, const struct forward_sums *a,
                     struct err *e)
{
    struct model m = host_model(a->dtype);

    (void)c;
    if (fake_must_own(a->x, bytes_of(a->dtype, a->rows, a->depth), "sums", e) <
            0 ||
        fake_must_own(a->w, 1, "sums", e) < 0 || blas_open(e) < 0)
        return e->code;
    if (fake_owned(a->y, 1))
        return err_set(e, E_BUG, "fake: sums: not memory of the host");
    return a->weights == DT_F32 ? fake_router_sums(a, e) :
                                  product_sums(&m, a, e);
}

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

static int fake_attend(struct cuda_context *c, const struct forward_attend *a,
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

static int fake_gate(struct cuda_context *c, const struct forward_gate *a,
                     struct err *e)
{
    struct model m = host_model(a->dtype);
    struct layer l = { .m = &m, .shared_gate = (float *)(uintptr_t)a->w };
    struct state s = {
        .dtype = a->dtype, .rows = a->rows, .row = a->n, .x = a->x
    };

    (void)c;
    if (fake_must_own(a->x, bytes_of(a->dtype, a->rows, a->n), "gate", e) < 0)
        return e->code;
    m.config.hidden_size = a->n;
    gate_run(&l, &s, a->in, a->y);
    return 0;
}

static int fake_add(struct cuda_context *c, enum dtype t, void *x,
                    const float *y, int64_t n, struct err *e)
{
    struct model m = host_model(t);

    (void)c;
    if (fake_must_own(x, bytes_of(t, 1, n), "add", e) < 0 ||
        fake_must_own(y, (size_t)n * 4, "add", e) < 0)
        return e->code;
    m.config.hidden_size = 1;
    return model_add(&m, x, y, n, e);
}

static int fake_subtract(struct cuda_context *c,
                         const struct forward_difference *d, struct err *e)
{
    struct model m = host_model(d->dtype);
    size_t bytes = bytes_of(d->dtype, d->rows, d->n);

    (void)c;
    if (fake_must_own(d->to, bytes, "difference", e) < 0 ||
        fake_must_own(d->a, bytes, "minuend", e) < 0 ||
        fake_must_own(d->b, bytes, "subtrahend", e) < 0 ||
        fake_must_own(d->bias, d->bias ? (size_t)d->n * 4 : 0, "subtract", e) <
            0)
        return e->code;
    return model_subtract(&m, d->to, d->a, d->b, d->bias, d->rows, d->n, e);
}

static int fake_add_share(struct cuda_context *c, const struct forward_rows *r,
                          void *to, const void *from, const float *share,
                          const void *reference, const void *own, struct err *e)
{
    struct model m = host_model(r->dtype);
    struct expert_rows x = { .n = r->rows, .reference = from, .slot = r->slot };

    (void)c;
    if (fake_must_own(to, bytes_of(r->dtype, r->rows, r->n), "add_share", e) <
        0)
        return e->code;
    m.config.hidden_size = r->n;
    return experts_add_share(&m, &x, r->top_k, share, reference, own, to, e);
}

static int fake_finite(struct cuda_context *c, enum dtype t, const void *x,
                       int64_t n, bool *yes, struct err *e)
{
    struct model m = host_model(t);

    (void)c;
    *yes = model_finite(&m, x, n);
    return fake_must_own(x, bytes_of(t, 1, n), "finite", e);
}

__attribute__((visibility("default")))
const struct forward_table forge_forward_table = {
    .version = FORWARD_TABLE_VERSION,
    .alloc = fake_alloc,
    .release = fake_release,
    .room = fake_room,
    .put = fake_put,
    .get = fake_get,
    .copy = fake_copy,
    .copy_rows = fake_copy_rows,
    .zero = fake_zero,
    .weight = fake_weight,
    .codes = fake_codes,
    .fp8 = fake_fp8,
    .linear = fake_linear,
    .drop = fake_drop,
    .norm = fake_norm,
    .product = fake_product,
    .sums = fake_sums,
    .route = fake_route,
    .attend = fake_attend,
    .turn = fake_turn,
    .gate_heads = fake_gate_heads,
    .recur = fake_recur,
    .gate = fake_gate,
    .pair = fake_pair,
    .add = fake_add,
    .add_times = fake_add_times,
    .predict = fake_predict,
    .join = fake_join,
    .correct = fake_correct,
    .sparsify = fake_sparsify,
    .subtract = fake_subtract,
    .gather = fake_gather,
    .scatter = fake_scatter,
    .add_share = fake_add_share,
    .finite = fake_finite,
};
