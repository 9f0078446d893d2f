/* backward_head_cuda.cu - gradient through the head, as backward_head_cpu.c: by
 * blocks of the vocabulary, first for the sums of exponentials and roots, then for c. */
#include "common/math/splitmix.h"
#include "cuda/backward_internal.cuh"

enum { THREADS = 256 };

/* Work memory of a part of the rows. */
struct room {
    double *sum;   /* [rows]: Σ exp(logit - most) */
    double *roots; /* [rows]: Σ s exp((logit - most) / 2); then Σ s sqrt(p) */
    float *most;   /* [rows]: largest logit so far; then log Σ exp(logit) */
    float *logit;  /* [rows, GRADIENT_VOCABULARY] */
};

static __global__ void start_kernel(struct room r, int rows)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);

    if (i < rows) {
        r.sum[i] = r.roots[i] = 0;
        r.most[i] = -INFINITY;
    }
}

static __global__ void between_kernel(struct room r, int rows)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);

    if (i < rows) {
        float most = r.most[i], scale = most + (float)log(r.sum[i]);

        r.most[i] = scale;
        r.roots[i] *= exp(((double)most - (double)scale) / 2);
    }
}

/* How products become logits z, and with respect to what gradients are. */
struct squash {
    float scale, cap; /* cap 0: none */
};

/* Products become logits. */
static __global__ void __launch_bounds__(ROW)
    squash_kernel(float *y, struct squash s, int64_t n)
{
    EACH(i, n)
    {
        float z = __fmul_rn(y[i], s.scale);

        y[i] = s.cap > 0 ? s.cap * tanhf(z / s.cap) : z;
    }
}

/* The derivative of the logit z. */
static __device__ __forceinline__ float slope(const struct squash &s, float z)
{
    float t = s.cap > 0 ? z / s.cap : 0;

    return s.scale * (1 - t * t);
}

/* s exp((logit - most) / 2), of token v of the vocabulary; row: splitmix64_at() of the
 * row's number. */
static __device__ __forceinline__ float signed_root(uint64_t row, int64_t v,
                                                    float logit, float most)
{
    float root = expf((logit - most) / 2);

    return splitmix64_at(row + (uint64_t)v / 64) >> v % 64 & 1 ? -root : root;
}

/* A block of threads per row.  v0: the first of the block of the vocabulary. */
static __global__ void __launch_bounds__(THREADS)
    exponents_kernel(struct room r, int64_t v0, int nv, uint64_t first)
{
    const float *logit = r.logit + (int64_t)blockIdx.x * nv;
    float before = r.most[blockIdx.x], most = before;
    uint64_t row = splitmix64_at(first + blockIdx.x);
    double sum = 0, roots = 0, by;

    for (int v = threadIdx.x; v < nv; v += THREADS)
        most = fmaxf(most, logit[v]);
    most = block_most<THREADS>(most);
    for (int v = threadIdx.x; v < nv; v += THREADS) {
        float root = signed_root(row, v0 + v, logit[v], most);

        sum += (double)root * (double)root;
        roots += (double)root;
    }
    sum = block_sum<THREADS>(sum);
    roots = block_sum<THREADS>(roots);
    if (threadIdx.x)
        return;
    by = exp(((double)before - (double)most) / 2);
    r.sum[blockIdx.x] = r.sum[blockIdx.x] * by * by + sum;
    r.roots[blockIdx.x] = r.roots[blockIdx.x] * by + roots;
    r.most[blockIdx.x] = most;
}

/* Replace logits by c times their derivatives. */
static __global__ void __launch_bounds__(THREADS)
    coefficients_kernel(struct room r, struct squash how, int64_t v0, int nv,
                        uint64_t first)
{
    float *logit = r.logit + (int64_t)blockIdx.x * nv;
    float scale = r.most[blockIdx.x], sum = (float)r.roots[blockIdx.x];
    uint64_t row = splitmix64_at(first + blockIdx.x);

    for (int v = threadIdx.x; v < nv; v += THREADS) {
        float root = signed_root(row, v0 + v, logit[v], scale);

        logit[v] = slope(how, logit[v]) * (root - root * root * sum);
    }
}

/* One of the two passes over the vocabulary for `rows` rows of y and g; first:
 * the number of the first row's signs. */
static int pass(struct cuda_context *c, const struct backward_head *a,
                const struct room *r, bool again, const float *y, float *g,
                int64_t rows, uint64_t first, struct err *e)
{
    for (int64_t v = 0; v < a->vocab; v += GRADIENT_VOCABULARY) {
        int64_t nv = a->vocab - v < GRADIENT_VOCABULARY ?
                         a->vocab - v :
                         (int64_t)GRADIENT_VOCABULARY;
        struct backward_product p = {};
        int rc;

        p.tb = true;
        p.m = rows;
        p.n = nv;
        p.k = a->h;
        p.alpha = 1;
        p.rounded = a->rounded;
        p.a = y;
        p.lda = p.ldb = a->h;
        p.b16 = a->w + v * a->h;
        p.c = r->logit;
        p.ldc = nv;
        if ((rc = backward_multiply(c, p, e)) < 0)
            return rc;
        if (a->scale != 1 || a->cap > 0) {
            squash_kernel<<<blocks_for(rows * nv), ROW, 0, c->stream>>>(
                r->logit, { a->scale, a->cap }, rows * nv);
            LAUNCHED();
        }
        if (!again)
            exponents_kernel<<<(unsigned)rows, THREADS, 0, c->stream>>>(
                *r, v, (int)nv, first);
        else
            coefficients_kernel<<<(unsigned)rows, THREADS, 0, c->stream>>>(
                *r, { a->scale, a->cap }, v, (int)nv, first);
        LAUNCHED();
        p.tb = false;
        p.n = a->h;
        p.k = p.lda = nv;
        p.a = r->logit;
        p.beta = v ? 1 : 0;
        p.c = g;
        p.ldc = a->h;
        if (again && (rc = backward_multiply(c, p, e)) < 0)
            return rc;
    }
    return 0;
}

static int run(struct cuda_context *c, const struct backward_head *a,
               const struct room *r, int64_t at, int64_t rows, struct err *e)
{
    unsigned blocks = (unsigned)((rows + THREADS - 1) / THREADS);
    const float *y = a->y + at * a->h;
    float *g = a->g + at * a->h;
    uint64_t first = a->first + (uint64_t)at;
    int rc;

    start_kernel<<<blocks, THREADS, 0, c->stream>>>(*r, (int)rows);
    LAUNCHED();
    if ((rc = pass(c, a, r, false, y, g, rows, first, e)) < 0)
        return rc;
    between_kernel<<<blocks, THREADS, 0, c->stream>>>(*r, (int)rows);
    LAUNCHED();
    return pass(c, a, r, true, y, g, rows, first, e);
}

int backward_head(struct cuda_context *c, const struct backward_head *a,
                  struct err *e)
{
    struct device_buffer *work = &backward_state()->work;
    int64_t part = a->rows < BATCH_ROWS ? a->rows : (int64_t)BATCH_ROWS;
    size_t n = (size_t)part * (5 + GRADIENT_VOCABULARY);
    struct room r;
    int rc = buffer_need(c, work, n * sizeof(float), e);

    if (rc < 0)
        return rc;
    r.sum = (double *)work->data;
    r.roots = r.sum + part;
    r.most = (float *)(r.roots + part);
    r.logit = r.most + part;
    for (int64_t i = 0; i < a->rows && rc >= 0; i += part)
        rc = run(c, a, &r, i, a->rows - i < part ? a->rows - i : part, e);
    return rc;
}
