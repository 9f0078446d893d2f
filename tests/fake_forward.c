/* fake_forward.c - the forward pass of the fake plug-in: operations are the CPU's,
 * so that results are equal to the CPU's to the bit. */
#include <stdlib.h>
#include <string.h>

#include "common/math/bf16_gemm.h"
#include "common/math/blas.h"
#include "common/math/lanes.h"
#include "common/math/quant.h"
#include "common/math/threads.h"
#include "fake_model.h"
#include "model/forward_table.h"
#include "model/internal.h"
#include "model/expert_rows.h"
#include "model/moe.h"
#include "w4a16/w4a16.h"

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
    rc = fake_pack_tuned(&m, &first, &copy[0], e) < 0 ||
                 fake_pack_tuned(&m, &second, &copy[1], e) < 0 ?
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

/* The rows of one expert, in memory of the device: in [n, h], mid [n, width], out [n, h],
 * squares [n]. */
static int run_expert(struct cuda_context *c, const struct forward_experts *a,
                      int64_t k, char *const room[4], struct err *e)
{
    int64_t n = a->first[k + 1] - a->first[k];
    const struct forward_rows rows = {
        DT_BF16, n, a->h, a->top_k, a->slot + a->first[k], a->by
    };
    const struct forward_product mid = { .dtype = DT_BF16,
                                         .rows = n,
                                         .n = a->width,
                                         .depth = a->h,
                                         .x = room[0],
                                         .w = a->w[0][k],
                                         .second = a->w[1][k],
                                         .out = room[1],
                                         .gating = a->gating };
    const struct forward_product out = { .dtype = DT_BF16,
                                         .rows = n,
                                         .n = a->h,
                                         .depth = a->width,
                                         .x = room[1],
                                         .w = a->w[2][k],
                                         .out = room[2] };

    return !n ? 0 :
           fake_gather(c, &rows, room[0], a->in, e) < 0 ||
                   fake_product(c, &mid, e) < 0 ||
                   fake_product(c, &out, e) < 0 ||
                   fake_scatter(c, &rows, a->sum, a->weight, room[2],
                                (double *)(void *)room[3], e) < 0 ?
                e->code :
                0;
}

/* One expert after the other. */
static int fake_experts(struct cuda_context *c, const struct forward_experts *a,
                        struct err *e)
{
    int64_t rows = a->first[a->experts];
    const size_t bytes[] = { bytes_of(DT_BF16, rows, a->h),
                             bytes_of(DT_BF16, rows, a->width),
                             bytes_of(DT_BF16, rows, a->h), (size_t)rows * 8 };
    void *room[4] = { NULL };
    bool spilled;
    int rc =
        fake_must_own(a->row, (size_t)(a->tokens * a->top_k) * 8, "experts", e);

    for (int i = 0; i < 4 && rc >= 0; i++)
        rc = fake_alloc(c, &room[i], bytes[i] + 1, true, &spilled, e);
    for (int64_t k = 0; k < a->experts && rc >= 0; k++)
        rc = run_expert(c, a, k, (char *const *)(void *)room, e);
    for (int i = 0; i < 4; i++)
        fake_release(c, room[i]);
    return rc;
}

static int fake_finite(struct cuda_context *c, enum dtype t, const void *x,
                       int64_t n, bool *yes, struct err *e)
{
    (void)c;
    *yes = lanes_all_finite(x, t, (uint64_t)n);
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
    .draw = fake_draw,
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
    .experts = fake_experts,
    .add_share = fake_add_share,
    .finite = fake_finite,
};
