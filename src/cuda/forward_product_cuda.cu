/* forward_product_cuda.cu - matrix products of the forward pass: one cuBLAS
 * call per product, or w4a16_cuda.cu for 4-bit weights, then the epilogue (bias,
 * residual, SwiGLU).
 *
 * cuBLAS is column-major, so it computes yᵀ = W xᵀ.  A bf16 product without a
 * bias is rounded by cuBLAS.  Before it is added to a residual or multiplied by
 * a gate a product is rounded, as on the CPU, so it is written to memory first:
 * 2 bytes per element, 4 with a bias. */
#include "cuda/forward_internal.cuh"
#include "cuda/w4a16_internal.cuh"

/* y[rows, n] = x[rows, depth] W[n, depth]ᵀ */
struct gemm {
    cudaDataType in, out; /* types of x and w, of y */
    int64_t rows, n, depth;
    const void *x, *w;
    const struct cuda_w4 *codes; /* instead of w, or NULL */
    void *y;
};

static enum forge_w4a16_type w4_type(cudaDataType t)
{
    return t == CUDA_R_16BF ? FORGE_W4A16_BF16 : FORGE_W4A16_F32;
}

static int multiply_codes(struct cuda_context *c, const struct gemm &g,
                          struct err *e)
{
    struct forge_w4a16_rows x = { w4_type(g.in), (void *)g.x, g.depth };
    struct forge_w4a16_rows y = { w4_type(g.out), g.y, g.n };
    const int64_t first[2] = { 0, g.rows };

    return w4_grouped(c, &g.codes, first, 1, &x, &y, W4_AUTO, e);
}

static int multiply(struct cuda_context *c, const struct gemm &g, struct err *e)
{
    const float one = 1, zero = 0;
    int rc;

    if (g.codes)
        return multiply_codes(c, g, e);
    if ((rc = need_blas(c, e)) < 0)
        return rc;
    if (g.rows > INT32_MAX || g.n > INT32_MAX || g.depth > INT32_MAX)
        return err_set(e, E_CONFIG, "cuda: a product too large");
    BLAS_TRY(c->blas.gemm(
        c->blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)g.n, (int)g.rows,
        (int)g.depth, &one, g.w, g.in, (int)g.depth, g.x, g.in, (int)g.depth,
        &zero, g.y, g.out, (int)g.n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return 0;
}

/* ---- epilogues ---- */

enum ending { STORE, ADD, GATE };

static __device__ __forceinline__ float silu(float x)
{
    return x / (expf(-x) + 1.0f);
}

/* 0.5 x (1 + tanh z) = x / (1 + e^-2z), z = sqrt(2/pi) (x + 0.044715 x^3). */
static __device__ __forceinline__ float gelu(float x)
{
    float z = x * fmaf(x * x, 0.044715f, 1.0f);

    return x / (expf(z * -1.5957691216f) + 1.0f);
}

/* What gate and up become, which are rounded already, rounded as on the CPU. */
template <class T>
static __device__ __forceinline__ float gated(const struct forward_gating &how,
                                              float g, float u)
{
    float s;

    if (how.act != ACT_CLAMPED)
        return __fmul_rn(rounded<T>(how.act == ACT_GELU ? gelu(g) : silu(g)),
                         u);
    g = fminf(g, how.limit);
    u = rounded<T>(__fadd_rn(fmaxf(fminf(u, how.limit), -how.limit), 1.0f));
    s = expf(rounded<T>(__fmul_rn(g, -how.alpha))) + 1.0f;
    s = sizeof(T) == 2 ? __fmul_rn(g, rounded<T>(1.0f / s)) : g / s;
    return __fmul_rn(u, rounded<T>(s));
}

/* out from the sums y and, for GATE, u, both of type S (f32, or rounded by
 * cuBLAS), with t = y + *bias: STORE: t; ADD: out + t; GATE: act(t) (u +
 * *second). */
template <class T, class S>
static __device__ __forceinline__ void
finish_one(enum ending end, const struct forward_gating &how, const S *y,
           const S *u, const float *bias, const float *second, T *out)
{
    float t = load(y);

    if (bias)
        t = __fadd_rn(t, *bias);
    t = rounded<T>(t);
    if (end == ADD)
        t = __fadd_rn(t, load(out));
    if (end == GATE) {
        float v = load(u);

        if (second)
            v = __fadd_rn(v, *second);
        t = gated<T>(how, t, rounded<T>(v));
    }
    store(out, t);
}

template <class T, class S, bool WIDE>
static __global__ void __launch_bounds__(ROW)
    finish_kernel(enum ending end, struct forward_gating how, const S *y,
                  const S *u, const float *bias, const float *second,
                  int64_t all, int64_t n, T *out)
{
    const int k = WIDE ? pack<T>::n : 1;
    int64_t step = (int64_t)gridDim.x * ROW * k;

    for (int64_t i = ((int64_t)blockIdx.x * ROW + threadIdx.x) * k; i < all;
         i += step) {
        int64_t col = bias || second ? i % n : 0;

        if (WIDE) {
            pack<T> p;
            S a[pack<T>::n], b[pack<T>::n];

            if (end == ADD)
                p = *(const pack<T> *)(out + i);
            for (int j = 0; j < k; j += pack<S>::n) {
                *(pack<S> *)(a + j) = *(const pack<S> *)(y + i + j);
                if (end == GATE)
                    *(pack<S> *)(b + j) = *(const pack<S> *)(u + i + j);
            }
            for (int j = 0; j < k; j++)
                finish_one(end, how, a + j, b + j, bias ? bias + col + j : NULL,
                           second ? second + col + j : NULL, p.x + j);
            *(pack<T> *)(out + i) = p;
        } else {
            finish_one(end, how, y + i, u + i, bias ? bias + col : NULL,
                       second ? second + col : NULL, out + i);
        }
    }
}

template <class T, class S>
static int finish(struct cuda_context *c, const struct forward_product *a,
                  const void *sums, struct err *e)
{
    const S *y = (const S *)sums, *u = y + a->rows * a->n;
    int64_t all = a->rows * a->n;
    enum ending end = a->second || a->second_codes ? GATE :
                      a->add                       ? ADD :
                                                     STORE;
    T *out = (T *)a->out;
    bool wide = aligned_rows(y, a->n, a->n) && aligned_rows(out, a->n, a->n) &&
                all % pack<S>::n == 0;
    unsigned blocks = blocks_for(all / (wide ? pack<T>::n : 1));

    if (wide)
        finish_kernel<T, S, true><<<blocks, ROW, 0, c->stream>>>(
            end, a->gating, y, u, a->bias, a->second_bias, all, a->n, out);
    else
        finish_kernel<T, S, false><<<blocks, ROW, 0, c->stream>>>(
            end, a->gating, y, u, a->bias, a->second_bias, all, a->n, out);
    LAUNCHED();
    return 0;
}

int forward_product(struct cuda_context *c, const struct forward_product *a,
                    struct err *e)
{
    bool half = a->dtype == DT_BF16, biased = a->bias || a->second_bias;
    bool gate = a->second || a->second_codes;
    cudaDataType in = half ? CUDA_R_16BF : CUDA_R_32F;
    cudaDataType out = half && !biased ? CUDA_R_16BF : CUDA_R_32F;
    size_t bytes = (size_t)(a->rows * a->n) * (out == CUDA_R_16BF ? 2 : 4);
    struct gemm g = { in,   out,  a->rows,  a->n,  a->depth,
                      a->x, a->w, a->codes, a->out };
    struct forward_state *s;
    char *y;
    int rc;

    if (!a->rows)
        return 0;
    if (!gate && !a->add && !biased)
        return multiply(c, g, e);
    if ((rc = forward_state(c, &s, e)) < 0 ||
        (rc = buffer_need(c, &s->sums, bytes * (gate ? 2 : 1), e)) < 0)
        return rc;
    y = (char *)s->sums.data;
    g.y = y;
    if ((rc = multiply(c, g, e)) < 0)
        return rc;
    g.w = a->second;
    g.codes = a->second_codes;
    g.y = y + bytes;
    if (gate && (rc = multiply(c, g, e)) < 0)
        return rc;
    if (!half)
        return finish<float, float>(c, a, y, e);
    return biased ? finish<bf16, float>(c, a, y, e) :
                    finish<bf16, bf16>(c, a, y, e);
}

/* ---- gate and up that are there already ---- */

template <class T>
static __global__ void __launch_bounds__(ROW)
    pair_kernel(struct forward_gating how, const T *g, const T *u, int64_t ldg,
                int64_t ldu, int64_t all, int64_t n, T *out)
{
    EACH(i, all)
    {
        int64_t r = i / n, k = i % n;

        store(out + i,
              gated<T>(how, load(g + r * ldg + k), load(u + r * ldu + k)));
    }
}

template <class T>
static int pair_rows(struct cuda_context *c, const struct forward_pair *a,
                     struct err *e)
{
    int64_t all = a->rows * a->n;

    pair_kernel<<<blocks_for(all), ROW, 0, c->stream>>>(
        a->gating, (const T *)a->g, (const T *)a->u, a->ldg, a->ldu, all, a->n,
        (T *)a->out);
    LAUNCHED();
    return 0;
}

int forward_pair(struct cuda_context *c, const struct forward_pair *a,
                 struct err *e)
{
    return a->rows ? BY_DTYPE(a->dtype, pair_rows, c, a, e) : 0;
}

/* ---- f32 sums without an epilogue ---- */

static __global__ void __launch_bounds__(ROW)
    widen_kernel(const bf16 *x, int64_t n, float *to)
{
    EACH(i, n)
    to[i] = __bfloat162float(x[i]);
}

/* *x = a->x as f32: a router multiplies in f32. */
static int widen(struct cuda_context *c, struct forward_state *s,
                 const struct forward_sums *a, const void **x, struct err *e)
{
    int64_t n = a->rows * a->depth;
    int rc;

    if (a->dtype == a->weights)
        return 0;
    if ((rc = buffer_need(c, &s->widened, (size_t)n * sizeof(float), e)) < 0)
        return rc;
    widen_kernel<<<blocks_for(n), ROW, 0, c->stream>>>(
        (const bf16 *)a->x, n, (float *)s->widened.data);
    LAUNCHED();
    *x = s->widened.data;
    return 0;
}

int forward_sums_there(struct cuda_context *c, const struct forward_sums *a,
                       float **y, struct err *e)
{
    bool half = a->weights == DT_BF16;
    const char *w =
        (const char *)a->w + (size_t)(a->first * a->depth) * (half ? 2 : 4);
    const void *x = a->x;
    struct forward_state *s;
    int rc;

    if ((rc = forward_state(c, &s, e)) < 0 ||
        (rc = buffer_need(c, &s->sums, (size_t)(a->rows * a->n) * sizeof(float),
                          e)) < 0 ||
        (rc = widen(c, s, a, &x, e)) < 0)
        return rc;
    *y = (float *)s->sums.data;
    return multiply(c,
                    { half ? CUDA_R_16BF : CUDA_R_32F, CUDA_R_32F, a->rows,
                      a->n, a->depth, x, w, NULL, s->sums.data },
                    e);
}

int forward_sums(struct cuda_context *c, const struct forward_sums *a,
                 struct err *e)
{
    size_t row = (size_t)a->n * sizeof(float);
    float *y;
    int rc;

    if (!a->rows || !a->n)
        return 0;
    if ((rc = forward_sums_there(c, a, &y, e)) < 0)
        return rc;
    if (a->ld == a->n)
        return download(c, a->y, y, (size_t)a->rows * row, e);
    for (int64_t i = 0; i < a->rows; i++)
        if ((rc = download(c, a->y + i * a->ld, y + i * a->n, row, e)) < 0)
            return rc;
    return 0;
}
