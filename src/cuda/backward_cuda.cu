/* backward_cuda.cu - the backward pass on the GPU: products, norms, gates,
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

int backward_times(struct cuda_context *c, int64_t rows, const void *x,
                   int64_t k, struct backward_matrix w, bool transposed,
                   float *y, int64_t n, bool add, struct err *e)
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

int backward_squares(struct cuda_context *c, const float *x, int64_t rows,
                     int64_t n, float *to, struct err *e)
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
    struct backward_matrix w = { a->w, a->bf16, a->rounded };
    int64_t all = a->rows * a->out;
    int rc;

    if (!a->rows)
        return 0;
    rc = a->back ? backward_times(c, a->rows, a->x, a->out, w, false, a->y,
                                  a->in, a->add, e) :
                   backward_times(c, a->rows, a->x, a->in, w, true, a->y,
                                  a->out, a->add, e);
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
    BACKWARD_TABLE_VERSION, forward_pinned,   backward_widen,
    backward_narrow,        backward_scale,   backward_squares,
    backward_linear,        backward_norm,    backward_weights,
    backward_mlp,           backward_experts, backward_gates,
    backward_attend,        backward_latent,  backward_head,
    backward_divergence,
};
