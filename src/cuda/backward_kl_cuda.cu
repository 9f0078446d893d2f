/* backward_kl_cuda.cu - the gradient of KL(p || q) through the head, as backward_kl.c
 * on the CPU: parts of tokens, whose logits of the whole vocabulary are in memory, so
 * that each is computed once. */
#include "cuda/backward_internal.cuh"

enum { THREADS = 512 };

struct logits {
    float *p, *q; /* [rows, vocab]: products W y */
    double *kl;   /* [rows] */
    int64_t vocab;
    float by, scale, cap;
};

/* The logit of a product, and its derivative. */
static __device__ __forceinline__ float squash(const struct logits &l, float z,
                                               float *slope)
{
    float t = l.cap > 0 ? tanhf(l.scale * z / l.cap) : 0;

    *slope = l.scale * (1 - t * t);
    return l.cap > 0 ? l.cap * t : l.scale * z;
}

/* The logarithm of the sum of the exponentials of the logits of products z[vocab]. */
static __device__ float log_sum(const struct logits &l, const float *z)
{
    float most = -INFINITY, slope;
    double sum = 0;

    for (int64_t v = threadIdx.x; v < l.vocab; v += THREADS)
        most = fmaxf(most, squash(l, z[v], &slope));
    most = block_most<THREADS>(most);
    for (int64_t v = threadIdx.x; v < l.vocab; v += THREADS)
        sum += (double)expf(squash(l, z[v], &slope) - most);
    return most + (float)log(block_sum<THREADS>(sum));
}

/* A block per row: its KL, and q = by (exp q - exp p) times the logits' derivatives. */
static __global__ void __launch_bounds__(THREADS)
    diverge_kernel(const struct logits l)
{
    float *p = l.p + (int64_t)blockIdx.x * l.vocab;
    float *q = l.q + (int64_t)blockIdx.x * l.vocab;
    float of_p = log_sum(l, p), of_q = log_sum(l, q), slope;
    double kl = 0;

    for (int64_t v = threadIdx.x; v < l.vocab; v += THREADS) {
        float log_p = squash(l, p[v], &slope) - of_p;
        float log_q = squash(l, q[v], &slope) - of_q, a = expf(log_p);
        float d = expf(log_q) - a; /* with it, errors of the sums cancel */

        kl += (double)(a * (log_p - log_q) + d);
        q[v] = l.by * d * slope;
    }
    kl = block_sum<THREADS>(kl);
    if (!threadIdx.x)
        l.kl[blockIdx.x] = kl;
}

/* The sum of n numbers, by one block. */
static __global__ void __launch_bounds__(THREADS)
    sum_kernel(double *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        sum += x[i];
    sum = block_sum<THREADS>(sum);
    if (!threadIdx.x)
        x[0] = sum;
}

/* y[rows, vocab] = x[rows, h] Wᵀ, or back: y[rows, h] = x[rows, vocab] W. */
static int multiply(struct cuda_context *c, const struct backward_divergence *a,
                    bool back, const float *x, int64_t rows, float *y,
                    struct err *e)
{
    struct backward_product p = {};

    p.tb = !back;
    p.m = rows;
    p.n = p.ldc = back ? a->h : a->vocab;
    p.k = p.lda = back ? a->vocab : a->h;
    p.alpha = 1;
    p.a = x;
    p.b16 = a->w;
    p.ldb = a->h;
    p.c = y;
    p.rounded = a->rounded;
    return backward_multiply(c, p, e);
}

static int run_part(struct cuda_context *c, const struct backward_divergence *a,
                    struct logits l, int64_t at, int64_t rows, struct err *e)
{
    int rc;

    l.kl += at;
    if ((rc = multiply(c, a, false, a->ref + at * a->h, rows, l.p, e)) < 0 ||
        (rc = multiply(c, a, false, a->y + at * a->h, rows, l.q, e)) < 0)
        return rc;
    diverge_kernel<<<(unsigned)rows, THREADS, 0, c->stream>>>(l);
    LAUNCHED();
    return multiply(c, a, true, l.q, rows, a->g + at * a->h, e);
}

int backward_divergence(struct cuda_context *c,
                        const struct backward_divergence *a, struct err *e)
{
    struct device_buffer *work = &backward_state()->work;
    int64_t part = TUNE_LOGITS / a->vocab;
    struct logits l = { NULL, NULL, NULL, a->vocab, a->by, a->scale, a->cap };
    int rc;

    *a->kl = 0;
    if (!a->rows)
        return 0;
    part = part < 1 ? 1 : part > a->rows ? a->rows : part;
    rc = buffer_need(c, work,
                     (size_t)a->rows * sizeof(double) +
                         2 * (size_t)(part * a->vocab) * sizeof(float),
                     e);
    if (rc < 0)
        return rc;
    l.kl = (double *)work->data;
    l.p = (float *)(l.kl + a->rows);
    l.q = l.p + part * a->vocab;
    for (int64_t i = 0; i < a->rows; i += part)
        if ((rc = run_part(c, a, l, i, a->rows - i < part ? a->rows - i : part,
                           e)) < 0)
            return rc;
    sum_kernel<<<1, THREADS, 0, c->stream>>>(l.kl, a->rows);
    LAUNCHED();
    return download(c, a->kl, l.kl, sizeof(*a->kl), e);
}
