/* backward_head_cuda.cu - gradient through the head, as backward_head_cpu.c: by
 * blocks of the vocabulary, first for the sums of exponentials, then for p. */
#include "cuda/backward_internal.cuh"

enum {
    THREADS = 256,
    MOST = (GRADIENT_VOCABULARY + THREADS - 1) / THREADS /* a thread's logits */
};

/* Work memory of a part of the rows. */
struct room {
    double *sum;  /* [rows]: Σ exp(logit - most); second pass: running Σ p */
    float *most;  /* [rows]: largest logit so far */
    float *logit; /* [rows, GRADIENT_VOCABULARY] */
    float *w;     /* [GRADIENT_VOCABULARY, h]: the block's rows of W */
};

static __global__ void start_kernel(struct room r, int rows)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);

    if (i < rows) {
        r.sum[i] = 0;
        r.most[i] = -INFINITY;
    }
}

/* most = log Σ exp(logit); sum = 0. */
static __global__ void between_kernel(struct room r, int rows)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);

    if (i < rows) {
        r.most[i] += (float)log(r.sum[i]);
        r.sum[i] = 0;
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

/* A block of threads per row. */
static __global__ void __launch_bounds__(THREADS)
    exponents_kernel(struct room r, int nv)
{
    const float *logit = r.logit + (int64_t)blockIdx.x * nv;
    float before = r.most[blockIdx.x], most = before;
    double sum = 0;

    for (int v = threadIdx.x; v < nv; v += THREADS)
        most = fmaxf(most, logit[v]);
    most = block_most<THREADS>(most);
    for (int v = threadIdx.x; v < nv; v += THREADS)
        sum += (double)expf(logit[v] - most);
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x)
        return;
    r.sum[blockIdx.x] =
        r.sum[blockIdx.x] * exp((double)before - (double)most) + sum;
    r.most[blockIdx.x] = most;
}

/* Uniform in [0, 1), by SplitMix64 of a number. */
static __device__ double draw(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Replace logits by p, minus 1 for the drawn token, times their derivatives.  A
 * thread has consecutive logits; sums at its ends come from a scan, to which
 * those inside are cut, so that the parts of [0, 1) that tokens have neither
 * overlap nor leave gaps. */
static __global__ void __launch_bounds__(THREADS)
    probabilities_kernel(struct room r, struct squash how, int nv,
                         uint64_t first)
{
    __shared__ double at[THREADS + 1];
    int me = (int)threadIdx.x, per = (nv + THREADS - 1) / THREADS;
    int begin = me * per < nv ? me * per : nv;
    int end = begin + per < nv ? begin + per : nv;
    float *logit = r.logit + (int64_t)blockIdx.x * nv, p[MOST];
    float scale = r.most[blockIdx.x];
    double u = draw(first + blockIdx.x), sum = 0, before, after;

    for (int v = begin; v < end; v++) {
        p[v - begin] = expf(logit[v] - scale);
        sum += (double)p[v - begin];
    }
    at[me + 1] = sum;
    __syncthreads();
    if (!me) {
        at[0] = r.sum[blockIdx.x];
        for (int i = 1; i <= THREADS; i++)
            at[i] += at[i - 1];
        r.sum[blockIdx.x] = at[THREADS];
    }
    __syncthreads();
    before = at[me];
    for (int v = begin; v < end; v++, before = after) {
        after = v == end - 1 ? at[me + 1] :
                               fmin(before + (double)p[v - begin], at[me + 1]);
        logit[v] = slope(how, logit[v]) *
                   (before <= u && u < after ? p[v - begin] - 1 : p[v - begin]);
    }
}

/* One of the two passes over the vocabulary for `rows` rows of y and g; first:
 * the number of the first row's draw. */
static int pass(struct cuda_context *c, const struct backward_head *a,
                const struct room *r, bool again, const float *y, float *g,
                int64_t rows, uint64_t first, struct err *e)
{
    for (int64_t v = 0; v < a->vocab; v += GRADIENT_VOCABULARY) {
        int64_t nv = a->vocab - v < GRADIENT_VOCABULARY ?
                         a->vocab - v :
                         (int64_t)GRADIENT_VOCABULARY;
        struct backward_product p = {};
        int rc =
            backward_widen(c, DT_BF16, a->w + v * a->h, nv * a->h, r->w, e);

        p.tb = true;
        p.m = rows;
        p.n = nv;
        p.k = a->h;
        p.alpha = 1;
        p.a = y;
        p.lda = p.ldb = a->h;
        p.b = r->w;
        p.c = r->logit;
        p.ldc = nv;
        if (rc < 0 || (rc = backward_multiply(c, p, e)) < 0)
            return rc;
        if (a->scale != 1 || a->cap > 0) {
            squash_kernel<<<blocks_for(rows * nv), ROW, 0, c->stream>>>(
                r->logit, { a->scale, a->cap }, rows * nv);
            LAUNCHED();
        }
        if (!again)
            exponents_kernel<<<(unsigned)rows, THREADS, 0, c->stream>>>(
                *r, (int)nv);
        else
            probabilities_kernel<<<(unsigned)rows, THREADS, 0, c->stream>>>(
                *r, { a->scale, a->cap }, (int)nv, first);
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
    size_t n = (size_t)part * (3 + GRADIENT_VOCABULARY) +
               (size_t)GRADIENT_VOCABULARY * (size_t)a->h;
    struct room r;
    int rc = buffer_need(c, work, n * sizeof(float), e);

    if (rc < 0)
        return rc;
    r.sum = (double *)work->data;
    r.most = (float *)(r.sum + part);
    r.logit = r.most + part;
    r.w = r.logit + part * GRADIENT_VOCABULARY;
    for (int64_t i = 0; i < a->rows && rc >= 0; i += part)
        rc = run(c, a, &r, i, a->rows - i < part ? a->rows - i : part, e);
    return rc;
}
