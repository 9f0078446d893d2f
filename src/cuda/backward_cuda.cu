/* backward_cuda.cu - the backward pass on the GPU: products, norms, MLPs, gates,
 * keys and values of latent attention.  Products are those of backward_product_cuda.cu;
 * all other kernels are bound by memory bandwidth. */
#include "cuda/backward_internal.cuh"

/* ---- between elements and f32 ---- */

template <class T>
static __global__ void __launch_bounds__(ROW)
    widen_kernel(const T *x, int64_t n, float *to)
{
    EACH(i, n)
    to[i] = load(x + i);
}

template <class T>
static __global__ void __launch_bounds__(ROW)
    narrow_kernel(const float *x, int64_t n, T *to)
{
    EACH(i, n)
    store(to + i, x[i]);
}

template <class T>
static int widen(struct cuda_context *c, const void *x, int64_t n, float *to,
                 struct err *e)
{
    widen_kernel<<<blocks_for(n), ROW, 0, c->stream>>>((const T *)x, n, to);
    LAUNCHED();
    return 0;
}

template <class T>
static int narrow(struct cuda_context *c, const float *x, int64_t n, void *to,
                  struct err *e)
{
    narrow_kernel<<<blocks_for(n), ROW, 0, c->stream>>>(x, n, (T *)to);
    LAUNCHED();
    return 0;
}

static int backward_widen(struct cuda_context *c, enum dtype t, const void *x,
                          int64_t n, float *to, struct err *e)
{
    return n ? BY_DTYPE(t, widen, c, x, n, to, e) : 0;
}

int backward_narrow(struct cuda_context *c, enum dtype t, const float *x,
                    int64_t n, void *to, struct err *e)
{
    return n ? BY_DTYPE(t, narrow, c, x, n, to, e) : 0;
}

/* ---- products with weights ---- */

/* W of a linear or an MLP, and how its products are made. */
struct weights {
    const void *w;
    bool bf16;    /* w is; or f32 */
    bool rounded; /* then the other operand is rounded */
    bool both;    /* or is of bf16, too */
};

/* y[rows, n] = x[rows, k] W, with W [k, n], or transposed [n, k]; added to y if
 * `add`.  Rows are contiguous. */
static int multiply(struct cuda_context *c, int64_t rows, const void *x,
                    int64_t k, struct weights w, bool transposed, float *y,
                    int64_t n, bool add, struct err *e)
{
    struct backward_product p = {};

    p.tb = transposed;
    p.m = rows;
    p.n = n;
    p.k = k;
    p.alpha = 1;
    p.a = (const float *)x;
    p.a16 = w.both ? x : NULL;
    p.lda = k;
    p.b = (const float *)w.w;
    p.b16 = w.bf16 ? w.w : NULL;
    p.rounded = w.rounded;
    p.ldb = transposed ? k : n;
    p.beta = add ? 1 : 0;
    p.c = y;
    p.ldc = n;
    return backward_multiply(c, p, e);
}

/* ---- multiples ---- */

static __global__ void __launch_bounds__(ROW)
    scale_kernel(const float *x, float by, bool add, int64_t n, float *to)
{
    EACH(i, n)
    {
        float y = __fmul_rn(by, x[i]);

        to[i] = add ? __fadd_rn(y, to[i]) : y;
    }
}

static int backward_scale(struct cuda_context *c, const float *x, float by,
                          bool add, int64_t n, float *to, struct err *e)
{
    if (!n)
        return 0;
    scale_kernel<<<blocks_for(n), ROW, 0, c->stream>>>(x, by, add, n, to);
    LAUNCHED();
    return 0;
}

/* ---- squares ---- */

/* One block per row. */
static __global__ void __launch_bounds__(ROW)
    squares_kernel(const float *x, int64_t n, float *to)
{
    double sum = 0;

    x += blockIdx.x * n;
    for (int64_t i = threadIdx.x; i < n; i += ROW)
        sum += (double)x[i] * (double)x[i];
    sum = block_sum<ROW>(sum);
    if (!threadIdx.x)
        to[blockIdx.x] = __fadd_rn(to[blockIdx.x], (float)sum);
}

static int backward_squares(struct cuda_context *c, const float *x,
                            int64_t rows, int64_t n, float *to, struct err *e)
{
    if (!rows)
        return 0;
    squares_kernel<<<(unsigned)rows, ROW, 0, c->stream>>>(x, n, to);
    LAUNCHED();
    return 0;
}

/* ---- linears ---- */

static __global__ void __launch_bounds__(ROW)
    bias_kernel(float *y, const float *bias, int64_t all, int64_t n)
{
    EACH(i, all)
    y[i] = __fadd_rn(y[i], bias[i % n]);
}

static int backward_linear(struct cuda_context *c,
                           const struct backward_linear *a, struct err *e)
{
    struct weights w = { a->w, a->bf16, a->rounded };
    int64_t all = a->rows * a->out;
    int rc;

    if (!a->rows)
        return 0;
    rc = a->back ? multiply(c, a->rows, a->x, a->out, w, false, a->y, a->in,
                            a->add, e) :
                   multiply(c, a->rows, a->x, a->in, w, true, a->y, a->out,
                            a->add, e);
    if (rc < 0 || !a->bias)
        return rc;
    bias_kernel<<<blocks_for(all), ROW, 0, c->stream>>>(a->y, a->bias, all,
                                                        a->out);
    LAUNCHED();
    return 0;
}

/* ---- norms ---- */

/* One block per row; a thread reads an element of x before it writes that of
 * g, which may be the same memory. */
template <class T>
static __global__ void __launch_bounds__(ROW)
    norm_kernel(const T *x, int64_t ld, const float *w, int n, double eps,
                const float *gy, float *g, int64_t ldg, bool add)
{
    double squares = 0, dot = 0, r;

    x += blockIdx.x * ld;
    gy += (int64_t)blockIdx.x * n;
    g += blockIdx.x * ldg;
    for (int i = threadIdx.x; i < n; i += ROW) {
        double v = (double)load(x + i);

        squares += v * v;
        dot += v * (double)__fmul_rn(w[i], gy[i]);
    }
    squares = block_sum<ROW>(squares);
    dot = block_sum<ROW>(dot);
    r = sqrt(squares / n + eps);
    dot /= n * r * r;
    for (int i = threadIdx.x; i < n; i += ROW) {
        float d = (float)(((double)__fmul_rn(w[i], gy[i]) -
                           (double)load(x + i) * dot) /
                          r);

        g[i] = add ? __fadd_rn(d, g[i]) : d;
    }
}

template <class T>
static int norm_rows(struct cuda_context *c, const struct backward_norm *a,
                     struct err *e)
{
    norm_kernel<<<(unsigned)a->rows, ROW, 0, c->stream>>>(
        (const T *)a->x, a->ld, a->w, (int)a->n, a->eps, a->gy, a->g, a->ldg,
        a->add);
    LAUNCHED();
    return 0;
}

static int backward_norm(struct cuda_context *c, const struct backward_norm *a,
                         struct err *e)
{
    return a->rows ? BY_DTYPE(a->dtype, norm_rows, c, a, e) : 0;
}

/* ---- MLPs ---- */

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
    struct weights of[MLP_LINEARS];
    int rc;

    for (int i = 0; i < MLP_LINEARS; i++)
        of[i] = { m->w[i], m->bf16, m->rounded, r->bf16 };
    if ((rc = multiply(c, n, r->in, h, of[MLP_GATE], true, a, w, false, e)) <
            0 ||
        (rc = multiply(c, n, r->in, h, of[MLP_UP], true, b, w, false, e)) < 0 ||
        (rc = multiply(c, n, r->g, h, of[MLP_DOWN], false, y, w, false, e)) < 0)
        return rc;
    gate_kernel<<<blocks_for(all), ROW, 0, c->stream>>>(
        m->gating, a, b, y, m->bias[MLP_GATE], m->bias[MLP_UP], all, w,
        (T *)r->a, (T *)r->b, m->weights[MLP_DOWN] ? (T *)r->mid : NULL);
    LAUNCHED();
    if ((!r->bf16 && (rc = add_squares(c, m, r->first, n, a, b, e)) < 0) ||
        (rc = add_weights(c, m, r, e)) < 0 ||
        (rc = multiply(c, n, r->a, w, of[MLP_GATE], false, gin, h, add, e)) < 0)
        return rc;
    return multiply(c, n, r->b, w, of[MLP_UP], false, gin, h, true, e);
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

/* room: f32 [3, n, width], then bf16 [3, n, width] and [2, n, h]; of the last gradients
 * take the place. */
static int bf16_part(struct cuda_context *c, const struct backward_mlp *m,
                     struct rows *r, float *room, float **apart, struct err *e)
{
    int64_t all = (r->n * m->width + LINE - 1) / LINE * LINE;
    int64_t rows = (r->n * m->h + LINE - 1) / LINE * LINE;
    bf16 *mid = (bf16 *)(room + 3 * all), *in = mid + 3 * all;
    float *gin = m->gin + r->first * m->h;
    int rc = gather(c, m, r, in, in + rows, e);

    r->bf16 = true;
    r->in = in;
    r->g = in + rows;
    r->mid = mid;
    r->a = mid + all;
    r->b = mid + 2 * all;
    if (m->token || m->weight)
        *apart = gin = (float *)in;
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

static int backward_mlp(struct cuda_context *c, const struct backward_mlp *a,
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

/* ---- the gate of a shared expert ---- */

static __global__ void __launch_bounds__(ROW)
    gates_kernel(const float *in, const float *w, int n, float *weight)
{
    double sum = 0;

    in += (int64_t)blockIdx.x * n;
    for (int i = threadIdx.x; i < n; i += ROW)
        sum += (double)in[i] * (double)w[i];
    sum = block_sum<ROW>(sum);
    if (!threadIdx.x)
        weight[blockIdx.x] = (float)(1 / (1 + exp(-sum)));
}

static int backward_gates(struct cuda_context *c, const float *in,
                          const float *w, int64_t rows, int64_t n,
                          float *weight, struct err *e)
{
    if (!rows)
        return 0;
    gates_kernel<<<(unsigned)rows, ROW, 0, c->stream>>>(in, w, (int)n, weight);
    LAUNCHED();
    return 0;
}

/* ---- latent attention ---- */

/* One block per row. */
static __global__ void __launch_bounds__(ROW)
    latent_kernel(struct backward_latent a)
{
    int64_t nope = a.nope, dim = nope + a.rope, both = nope + a.v_dim;
    float *key = a.key + blockIdx.x * a.heads * dim;
    float *value = a.value + blockIdx.x * a.heads * a.v_dim;
    float *tail = a.a + blockIdx.x * (a.kv_lora + a.rope) + a.kv_lora;
    float *b = a.b + blockIdx.x * a.heads * both;

    for (int64_t i = threadIdx.x; i < a.heads * dim; i += ROW) {
        int64_t head = i / dim, k = i % dim;

        if (a.back && k < nope)
            b[head * both + k] = key[i];
        else if (!a.back)
            key[i] = k < nope ? b[head * both + k] : tail[k - nope];
    }
    for (int64_t i = threadIdx.x; i < a.heads * a.v_dim; i += ROW) {
        float *p = b + i / a.v_dim * both + nope + i % a.v_dim;

        if (a.back)
            *p = value[i];
        else
            value[i] = *p;
    }
    for (int64_t k = threadIdx.x; a.back && k < a.rope; k += ROW) {
        float sum = 0;

        for (int64_t head = 0; head < a.heads; head++)
            sum = __fadd_rn(sum, key[head * dim + nope + k]);
        tail[k] = sum;
    }
}

static int backward_latent(struct cuda_context *c,
                           const struct backward_latent *a, struct err *e)
{
    if (!a->rows)
        return 0;
    latent_kernel<<<(unsigned)a->rows, ROW, 0, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

/* ---- the table ---- */

extern "C" __attribute__((visibility("default")))
const struct backward_table forge_backward_table = {
    BACKWARD_TABLE_VERSION, forward_pinned, backward_widen,
    backward_narrow,        backward_scale, backward_squares,
    backward_linear,        backward_norm,  backward_weights,
    backward_mlp,           backward_gates, backward_attend,
    backward_latent,        backward_head,  backward_divergence,
};
