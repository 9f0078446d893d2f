/* fake_recur.c - linear attention, and the gates of attention's heads, of the fake
 * plug-in's forward pass: the CPU's. */
#include "common/math/dtype.h"
#include "fake_cuda.h"
#include "model/delta.h"
#include "model/internal.h"
#include "model/mamba.h"

static struct model host_model(enum dtype t)
{
    return (struct model){ .dtype = t,
                           .bf16 = t == DT_BF16,
                           .size = t == DT_BF16 ? 2 : 4,
                           .k = kernels_best() };
}

static size_t bytes_of(enum dtype t, int64_t rows, int64_t n)
{
    return (size_t)(rows * n) * (t == DT_BF16 ? 2 : 4);
}

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
