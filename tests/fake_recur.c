/* fake_recur.c - of the fake plug-in's forward pass linear attention, the gates of
 * attention's heads, and what several residual streams need: the CPU's. */
#include "common/math/dtype.h"
#include "fake_model.h"
#include "model/altup.h"
#include "model/delta.h"
#include "model/internal.h"
#include "model/mamba.h"

int fake_gate_heads(struct cuda_context *c, const struct forward_gate_heads *a,
                    struct err *e)
{
    struct model m = host_model(a->dtype);
    int64_t n = a->dim, last = a->g.row * (a->rows - 1);
    float y[HEAD_DIM_MAX];

    (void)c;
    last += a->g.head * (a->heads - 1) + n;
    if (fake_must_own(a->g.p, bytes_of(a->dtype, 1, last), "gate_heads", e) <
            0 ||
        fake_must_own(a->out, bytes_of(a->dtype, a->rows, a->heads * n),
                      "gate_heads", e) < 0)
        return e->code;
    for (int64_t i = 0; i < a->rows * a->heads; i++) {
        char *to = (char *)a->out + bytes_of(a->dtype, i, n);
        int64_t at = i / a->heads * a->g.row + i % a->heads * a->g.head;

        (void)!to_f32(y, to, a->dtype, (size_t)n);
        attention_gate(&m, (const char *)a->g.p + bytes_of(a->dtype, 1, at), n,
                       y);
        (void)!from_f32(to, a->dtype, y, (size_t)n);
    }
    return 0;
}

static int own_heads(const struct forward_recur *a,
                     const struct forward_heads *h, int64_t n, struct err *e)
{
    int64_t last = h->row * (a->rows - 1) + h->head * (a->of.k_heads - 1) + n;

    return fake_must_own(h->p, bytes_of(a->dtype, 1, last), "recur", e);
}

/* What linear attention reads and writes is the device's. */
static int own_recur(const struct forward_recur *a, struct err *e)
{
    const struct delta *d = &a->of;
    int64_t each = d->v_heads / d->k_heads, inner = d->v_heads * d->v_dim;
    int64_t channels = inner + 2 * d->k_heads * d->k_dim;
    int64_t gates = a->form == DELTA_CHANNELS ? each * d->k_dim : each;
    bool mamba = a->form == DELTA_MAMBA;

    if (own_heads(a, &a->q, d->k_dim, e) < 0 ||
        own_heads(a, &a->k, d->k_dim, e) < 0 ||
        own_heads(a, &a->v, each * d->v_dim, e) < 0 ||
        own_heads(a, &a->z, each * d->v_dim, e) < 0 ||
        own_heads(a, &a->a, gates, e) < 0 ||
        (!mamba && own_heads(a, &a->b, each, e) < 0) ||
        fake_must_own(a->filter, (size_t)(channels * d->kernel) * 4, "recur",
                      e) < 0 ||
        fake_must_own(a->bias, a->bias ? (size_t)channels * 4 : 0, "recur", e) <
            0 ||
        fake_must_own(a->decay, (size_t)d->v_heads * 4, "recur", e) < 0 ||
        fake_must_own(a->shift, (size_t)(gates * d->k_heads) * 4, "recur", e) <
            0 ||
        fake_must_own(a->skip, mamba ? (size_t)d->v_heads * 4 : 0, "recur", e) <
            0 ||
        fake_must_own(a->norm, (size_t)(mamba ? inner : d->v_dim) * 4, "recur",
                      e) < 0 ||
        fake_must_own(a->states, a->states ? (size_t)(inner * d->k_dim) * 4 : 0,
                      "recur", e) < 0 ||
        fake_must_own(a->old,
                      a->old ? (size_t)((d->kernel - 1) * channels) * 4 : 0,
                      "recur", e) < 0)
        return e->code;
    return fake_must_own(a->out, bytes_of(a->dtype, a->rows, inner), "recur",
                         e);
}

int fake_recur(struct cuda_context *c, const struct forward_recur *a,
               struct err *e)
{
    struct model m = host_model(a->dtype);
    struct buffer work = { 0 };
    int rc;

    (void)c;
    if (own_recur(a, e) < 0)
        return e->code;
    rc = a->form == DELTA_MAMBA ? mamba_heads(&m, a, &work, e) :
                                  delta_heads(&m, a, e);
    buffer_release(&work);
    return rc;
}

/* ---- residual streams ---- */

int fake_add_times(struct cuda_context *c, const struct forward_add_times *a,
                   struct err *e)
{
    struct model m = host_model(a->dtype);
    int64_t last = a->rows ? (a->rows - 1) * a->ld + a->n : 0;

    (void)c;
    if (fake_must_own(a->x, bytes_of(a->dtype, 1, last), "add_times", e) < 0 ||
        fake_must_own(a->y, bytes_of(a->dtype, a->rows, a->n), "add_times", e) <
            0)
        return e->code;
    return model_add_times(&m, a, e);
}

/* by: how many numbers are there. */
static int own_streams(const struct forward_streams *a, int64_t by,
                       const char *what, struct err *e)
{
    int64_t last = (a->rows - 1) * a->ld + (a->n + 1) * a->width;
    size_t rows = bytes_of(a->dtype, a->rows, a->width);

    if (fake_must_own(a->x, bytes_of(a->dtype, 1, last), what, e) < 0 ||
        fake_must_own(a->router, (size_t)(a->n * a->width) * 4, what, e) < 0 ||
        fake_must_own(a->by, (size_t)by * 4, what, e) < 0 ||
        fake_must_own(a->scale, a->scale ? (size_t)a->width * 4 : 0, what, e) <
            0 ||
        fake_must_own(a->a, a->a ? rows : 0, what, e) < 0 ||
        fake_must_own(a->b, a->b ? rows : 0, what, e) < 0)
        return e->code;
    return fake_must_own(a->out, a->out ? rows : 0, what, e);
}

int fake_predict(struct cuda_context *c, const struct forward_streams *a,
                 struct err *e)
{
    struct model m = host_model(a->dtype);

    (void)c;
    return own_streams(a, a->n * a->n * a->n, "predict", e) < 0 ?
               e->code :
               streams_predict(&m, a, e);
}

int fake_join(struct cuda_context *c, const struct forward_streams *a,
              struct err *e)
{
    struct model m = host_model(a->dtype);

    (void)c;
    return own_streams(a, 0, "join", e) < 0 ? e->code : streams_join(&m, a, e);
}

int fake_correct(struct cuda_context *c, const struct forward_streams *a,
                 struct err *e)
{
    struct model m = host_model(a->dtype);

    (void)c;
    return own_streams(a, a->n * a->n, "correct", e) < 0 ?
               e->code :
               streams_correct(&m, a, e);
}

int fake_sparsify(struct cuda_context *c, enum dtype t, double cutoff, void *g,
                  int64_t rows, int64_t n, struct err *e)
{
    struct model m = host_model(t);

    (void)c;
    return fake_must_own(g, bytes_of(t, rows, n), "sparsify", e) < 0 ?
               e->code :
               altup_sparsify(&m, cutoff, g, rows, n, e);
}

/* Keys of head h of row r, at `position`. */
static void turn_head(const struct forward_attend *a,
                      const struct rotation *turn, int64_t r, int64_t h,
                      int64_t position)
{
    char *at = (char *)(uintptr_t)a->k.p +
               bytes_of(a->dtype, 1, r * a->k.row + h * a->k.head);
    float row[HEAD_DIM_MAX];

    kernels_best()->rotate_row(turn, at, a->cs + position * a->rotary, row);
    (void)!from_f32(at, a->dtype, row, (size_t)a->head_dim);
}

int fake_turn(struct cuda_context *c, const struct forward_attend *a,
              struct err *e)
{
    struct rotation turn = { .bf16 = a->dtype == DT_BF16,
                             .dim = a->head_dim,
                             .at = a->rotary_at,
                             .rotary = a->rotary,
                             .pairs = a->pairs,
                             .norm = a->k_norm,
                             .eps = a->eps };
    int64_t n = a->n_kv_heads * a->head_dim,
            last = (a->rows - 1) * a->k.row + n;

    (void)c;
    if (a->tail.p)
        return 0;
    if (fake_must_own(a->k.p, bytes_of(a->dtype, 1, last), "turn", e) < 0 ||
        fake_must_own(a->k_norm, a->k_norm ? (size_t)a->head_dim * 4 : 0,
                      "turn", e) < 0)
        return e->code;
    for (int64_t i = 0; i < a->n_sequences; i++)
        for (int64_t r = a->first[i]; r < a->first[i + 1]; r++)
            for (int64_t h = 0; h < a->n_kv_heads; h++)
                turn_head(a, &turn, r, h, a->past + r - a->first[i]);
    return 0;
}
