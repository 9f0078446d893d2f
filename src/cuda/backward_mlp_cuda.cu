/* backward_mlp_cuda.cu - the backward pass of an MLP, and of a layer's experts in a few
 * launches. */
#include "cuda/backward_internal.cuh"
#include "cuda/grouped.cuh"

#include <stdlib.h>

/* ---- an MLP ---- */

/* One block per row: inputs and gradients, one of them times weights. */
template <class T>
static __global__ void __launch_bounds__(ROW)
    gather_kernel(const struct backward_mlp m, int64_t first, T *to, T *gto)
{
    int64_t i = first + blockIdx.x, at = (m.token ? m.token[i] : i) * m.h;
    int64_t row = blockIdx.x * m.h;
    float w = m.weight ? m.weight[i] : 1;

    for (int64_t k = threadIdx.x; k < m.h; k += ROW) {
        store(to + row + k, __fmul_rn(m.weigh_inputs ? w : 1, m.in[at + k]));
        store(gto + row + k, __fmul_rn(m.weigh_inputs ? 1 : w, m.g[at + k]));
    }
}

/* A token occurs once, so no two blocks add to the same row.  weight: of inputs,
 * or NULL. */
static __global__ void __launch_bounds__(ROW)
    scatter_kernel(const float *from, const int64_t *token, const float *weight,
                   int64_t first, int h, float *gin)
{
    int64_t i = first + blockIdx.x, at = (token ? token[i] : i) * h;
    int64_t row = (int64_t)blockIdx.x * h;
    float w = weight ? weight[i] : 1;

    for (int k = threadIdx.x; k < h; k += ROW)
        gin[at + k] = __fadd_rn(gin[at + k], __fmul_rn(w, from[row + k]));
}

/* An activation of x = gate: its value and its derivative. */
static __device__ __forceinline__ float
activation(const struct forward_gating &how, float x, float *slope)
{
    const float twice = 1.5957691216f; /* 2 sqrt(2/pi), of GELU */
    bool gelu = how.act == ACT_GELU;
    float alpha = how.act == ACT_CLAMPED ? how.alpha : 1;
    float q = gelu ? 0.044715f * x * x : 0;
    float by = gelu ? twice * (1 + 3 * q) : alpha;
    float s = 1 / (1 + expf(-(gelu ? twice * (1 + q) : alpha) * x));

    *slope = s * (1 + by * x * (1 - s));
    return x * s;
}

/* a = gate, b = up, without their biases, c = gradient with respect to act(a)
 * b, or of ACT_CLAMPED to what enum activation says; ga and gb = the gradients with
 * respect to a and b, and unless NULL mid = act(a) b: each may be what it is of, or c. */
template <class T>
static __global__ void __launch_bounds__(ROW)
    gate_kernel(struct forward_gating how, const float *a, const float *b,
                const float *c, const float *gate, const float *up, int64_t all,
                int64_t n, T *ga, T *gb, T *mid)
{
    bool clamps = how.act == ACT_CLAMPED;
    float limit = how.limit;

    EACH(i, all)
    {
        float x = gate ? __fadd_rn(a[i], gate[i % n]) : a[i];
        float y = up ? __fadd_rn(b[i], up[i % n]) : b[i], g = c[i];
        float v = clamps ? fmaxf(fminf(y, limit), -limit) + 1 : y, slope;
        float s = activation(how, clamps ? fminf(x, limit) : x, &slope);

        store(ga + i, clamps && x > limit ? 0 : g * v * slope);
        store(gb + i, clamps && fabsf(y) > limit ? 0 : g * s);
        if (mid)
            store(mid + i, s * v);
    }
}

/* Of rows first..first+n-1, whose gradients are gate and up. */
static int add_squares(struct cuda_context *c, const struct backward_mlp *m,
                       int64_t first, int64_t n, const float *gate,
                       const float *up, struct err *e)
{
    const float *const g[] = { gate, up };
    int rc = 0;

    for (int i = MLP_GATE; i < MLP_DOWN && rc >= 0; i++)
        if (m->squares[i])
            rc = backward_squares(c, g[i], n, m->width, m->squares[i] + first,
                                  e);
    return rc;
}

/* Rows first..first+n-1 of an MLP: inputs and gradients with respect to outputs [n, h];
 * gradients with respect to gate's and up's outputs, and the inputs of down, [n, width].
 * All are f32, or with `bf16` rounded. */
struct rows {
    int64_t first, n;
    bool bf16;
    const void *in, *g;
    void *a, *b, *mid;
};

/* Add the gradients with respect to the weights that are wanted. */
static int add_weights(struct cuda_context *c, const struct backward_mlp *m,
                       const struct rows *r, struct err *e)
{
    const void *const out[] = { r->a, r->b, r->g };
    const void *const x[] = { r->in, r->in, r->mid };
    int rc = 0;

    for (int i = 0; i < MLP_LINEARS && rc >= 0; i++) {
        bool down = i == MLP_DOWN;
        struct backward_weights of = { r->n,
                                       down ? m->h : m->width,
                                       down ? m->width : m->h,
                                       (const float *)out[i],
                                       (const float *)x[i],
                                       m->weights[i],
                                       m->rounded };

        if (of.to)
            rc = r->bf16 ? backward_weights_bf16(c, &of, e) :
                           backward_weights(c, &of, e);
    }
    return rc;
}

/* All but inputs of rows whose `in` and `g` are there.  room: f32 [3, n, width].  gin:
 * their gradients, added to or not. */
template <class T>
static int run_rows(struct cuda_context *c, const struct backward_mlp *m,
                    const struct rows *r, float *room, float *gin, bool add,
                    struct err *e)
{
    int64_t h = m->h, w = m->width, n = r->n, all = n * w;
    float *a = room, *b = a + all, *y = b + all;
    struct backward_matrix of[MLP_LINEARS];
    int rc;

    for (int i = 0; i < MLP_LINEARS; i++)
        of[i] = { m->w[i], m->bf16, m->rounded, r->bf16 };
    if ((rc = backward_times(c, n, r->in, h, of[MLP_GATE], true, a, w, false,
                             e)) < 0 ||
        (rc = backward_times(c, n, r->in, h, of[MLP_UP], true, b, w, false,
                             e)) < 0 ||
        (rc = backward_times(c, n, r->g, h, of[MLP_DOWN], false, y, w, false,
                             e)) < 0)
        return rc;
    gate_kernel<<<blocks_for(all), ROW, 0, c->stream>>>(
        m->gating, a, b, y, m->bias[MLP_GATE], m->bias[MLP_UP], all, w,
        (T *)r->a, (T *)r->b, m->weights[MLP_DOWN] ? (T *)r->mid : NULL);
    LAUNCHED();
    if ((!r->bf16 && (rc = add_squares(c, m, r->first, n, a, b, e)) < 0) ||
        (rc = add_weights(c, m, r, e)) < 0 ||
        (rc = backward_times(c, n, r->a, w, of[MLP_GATE], false, gin, h, add,
                             e)) < 0)
        return rc;
    return backward_times(c, n, r->b, w, of[MLP_UP], false, gin, h, true, e);
}

template <class T>
static int gather(struct cuda_context *c, const struct backward_mlp *m,
                  const struct rows *r, T *in, T *g, struct err *e)
{
    gather_kernel<<<(unsigned)r->n, ROW, 0, c->stream>>>(*m, r->first, in, g);
    LAUNCHED();
    return 0;
}

/* room: f32 [3, n, width], and [2, n, h] where rows are gathered. */
static int f32_part(struct cuda_context *c, const struct backward_mlp *m,
                    struct rows *r, float *room, float **apart, struct err *e)
{
    int64_t all = r->n * m->width, rows = r->n * m->h;
    float *in = room + 3 * all, *gin = m->gin + r->first * m->h;
    int rc = 0;

    r->a = room;
    r->b = room + all;
    r->mid = room + 2 * all;
    r->in = m->in + r->first * m->h;
    r->g = m->g + r->first * m->h;
    if (m->token || m->weight) {
        rc = gather(c, m, r, in, in + rows, e);
        r->in = *apart = gin = in;
        r->g = in + rows;
    }
    return rc < 0 ? rc : run_rows<float>(c, m, r, room, gin, !*apart, e);
}

/* Where rows are: room is f32 [3, n, width], then bf16 [3, n, width] and [2, n, h]; of
 * the last gradients take the place. */
static void place_bf16(const struct backward_mlp *m, struct rows *r,
                       float *room)
{
    int64_t all = (r->n * m->width + LINE - 1) / LINE * LINE;
    int64_t rows = (r->n * m->h + LINE - 1) / LINE * LINE;
    bf16 *mid = (bf16 *)(room + 3 * all), *in = mid + 3 * all;

    r->bf16 = true;
    r->in = in;
    r->g = in + rows;
    r->mid = mid;
    r->a = mid + all;
    r->b = mid + 2 * all;
}

static int bf16_part(struct cuda_context *c, const struct backward_mlp *m,
                     struct rows *r, float *room, float **apart, struct err *e)
{
    float *gin = m->gin + r->first * m->h;
    int rc;

    place_bf16(m, r, room);
    if (m->token || m->weight)
        *apart = gin = (float *)r->in;
    rc = gather(c, m, r, (bf16 *)r->in, (bf16 *)r->g, e);
    return rc < 0 ? rc : run_rows<bf16>(c, m, r, room, gin, !*apart, e);
}

/* Rows first..first+n-1 of the MLP. */
static int mlp_part(struct cuda_context *c, const struct backward_mlp *m,
                    int64_t first, int64_t n, float *room, struct err *e)
{
    bool bf16 =
        m->rounded && m->bf16 && !m->squares[MLP_GATE] && !m->squares[MLP_UP];
    struct rows r = { first, n };
    float *apart = NULL;
    int rc = (bf16 ? bf16_part : f32_part)(c, m, &r, room, &apart, e);

    if (rc < 0 || !apart)
        return rc;
    scatter_kernel<<<(unsigned)n, ROW, 0, c->stream>>>(
        apart, m->token, m->weigh_inputs ? m->weight : NULL, first, (int)m->h,
        m->gin);
    LAUNCHED();
    return 0;
}

int backward_mlp(struct cuda_context *c, const struct backward_mlp *a,
                 struct err *e)
{
    struct device_buffer *room = &backward_state()->work;
    size_t row = gradient_mlp_bytes(a->h, a->width);
    int64_t most = GRADIENT_ROOM / (int64_t)row, part;
    int rc;

    most = most < BATCH_ROWS ? (int64_t)BATCH_ROWS : most;
    part = a->rows < most ? a->rows : most;
    rc = buffer_need(c, room, (size_t)part * row + 8 * LINE * sizeof(float), e);
    for (int64_t i = 0; i < a->rows && rc >= 0; i += part)
        rc = mlp_part(c, a, i, a->rows - i < part ? a->rows - i : part,
                      (float *)room->data, e);
    return rc;
}

/* ---- experts ---- */

/* Experts from..to-1. */
struct part {
    int64_t from, to;
    struct rows of;
    struct grouped *list; /* [3 * experts] */
};

/* The products of one linear [out, in] of the part's experts, behind `at`: C = op(A)
 * op(B) by `form`, whose rows of tokens x and y have as many numbers. */
static struct grouped *list_products(const struct backward_experts *a,
                                     const struct part *p, int linear,
                                     enum grouped_form form, const void *x,
                                     const void *y, struct grouped *at)
{
    int64_t out = linear == MLP_DOWN ? a->of.h : a->of.width;
    int64_t in = linear == MLP_DOWN ? a->of.width : a->of.h;
    int64_t nx = form == GROUPED_FORWARD ? in : out, ny = in + out - nx;

    for (int64_t i = p->from; i < p->to; i++) {
        int64_t row = a->first[i] - p->of.first;
        int64_t n = a->first[i + 1] - a->first[i];
        const bf16 *from = (const bf16 *)x + row * nx;

        if (form != GROUPED_WEIGHTS)
            *at++ = { from,
                      (const bf16 *)a->w[linear][i],
                      (float *)y + row * ny,
                      n,
                      ny,
                      nx };
        else if (a->weights[linear][i])
            *at++ = { from,
                      (const bf16 *)y + row * ny,
                      a->weights[linear][i],
                      out,
                      in,
                      n };
    }
    return at;
}

/* A product of each expert of the part. */
static int multiply_each(struct cuda_context *c,
                         const struct backward_experts *a, const struct part *p,
                         int linear, enum grouped_form form, const void *x,
                         float *y, bool add, struct err *e)
{
    struct grouped *end = list_products(a, p, linear, form, x, y, p->list);

    return grouped_multiply(c, form, add ? GROUPED_ADD : GROUPED_F32, p->list,
                            end - p->list, e);
}

static int add_gradients(struct cuda_context *c,
                         const struct backward_experts *a, const struct part *p,
                         struct err *e)
{
    const struct rows *r = &p->of;
    struct grouped *end =
        list_products(a, p, MLP_GATE, GROUPED_WEIGHTS, r->a, r->in, p->list);

    end = list_products(a, p, MLP_UP, GROUPED_WEIGHTS, r->b, r->in, end);
    end = list_products(a, p, MLP_DOWN, GROUPED_WEIGHTS, r->g, r->mid, end);
    return grouped_multiply(c, GROUPED_WEIGHTS, GROUPED_ADD, p->list,
                            end - p->list, e);
}

/* room: as of bf16_part(). */
static int run_experts(struct cuda_context *c, const struct backward_experts *a,
                       struct part *p, float *room, struct err *e)
{
    const struct backward_mlp *m = &a->of;
    struct rows *r = &p->of;
    int64_t all = r->n * m->width;
    float *x = room, *y = x + all, *z = y + all, *gin;
    bf16 *in;
    const struct grouped_rows sums = { a->tokens,
                                       a->top_k,
                                       m->h,
                                       a->row,
                                       r->first,
                                       r->first + r->n,
                                       m->weigh_inputs ? m->weight : NULL,
                                       true };
    int rc;

    place_bf16(m, r, room);
    in = (bf16 *)r->in;
    gin = (float *)in;
    if ((rc = gather(c, m, r, in, (bf16 *)r->g, e)) < 0 ||
        (rc = multiply_each(c, a, p, MLP_GATE, GROUPED_FORWARD, in, x, false,
                            e)) < 0 ||
        (rc = multiply_each(c, a, p, MLP_UP, GROUPED_FORWARD, in, y, false,
                            e)) < 0 ||
        (rc = multiply_each(c, a, p, MLP_DOWN, GROUPED_BACK, r->g, z, false,
                            e)) < 0)
        return rc;
    gate_kernel<<<blocks_for(all), ROW, 0, c->stream>>>(
        m->gating, x, y, z, NULL, NULL, all, m->width, (bf16 *)r->a,
        (bf16 *)r->b, (bf16 *)r->mid);
    LAUNCHED();
    if ((rc = add_gradients(c, a, p, e)) < 0 ||
        (rc = multiply_each(c, a, p, MLP_GATE, GROUPED_BACK, r->a, gin, false,
                            e)) < 0 ||
        (rc = multiply_each(c, a, p, MLP_UP, GROUPED_BACK, r->b, gin, true,
                            e)) < 0)
        return rc;
    return grouped_add(c, sums, DT_F32, gin, m->gin, e);
}

int backward_experts(struct cuda_context *c, const struct backward_experts *a,
                     struct err *e)
{
    struct device_buffer *room = &backward_state()->work;
    size_t row = gradient_mlp_bytes(a->of.h, a->of.width);
    int64_t most = GRADIENT_ROOM / (int64_t)row;
    struct part p = {};
    int rc;

    p.list = (struct grouped *)mem_alloc(
        (size_t)(MLP_LINEARS * a->experts + 1) * sizeof(*p.list), "experts", e);
    rc = p.list ? 0 : e->code;
    most = most < BATCH_ROWS ? (int64_t)BATCH_ROWS : most;
    for (; p.from < a->experts && rc >= 0; p.from = p.to) {
        p.to = grouped_end(a->first, a->experts, p.from, most);
        p.of.first = a->first[p.from];
        p.of.n = a->first[p.to] - p.of.first;
        if (!p.of.n)
            continue;
        rc = buffer_need(c, room,
                         (size_t)p.of.n * row + 8 * LINE * sizeof(float), e);
        if (rc >= 0)
            rc = run_experts(c, a, &p, (float *)room->data, e);
    }
    free(p.list);
    return rc;
}
