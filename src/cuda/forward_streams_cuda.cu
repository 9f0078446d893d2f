/* forward_streams_cuda.cu - what several residual streams need (model/altup.h), and
 * sums with a row's part: a block of threads for each row.  Sums over a row are in
 * double, as on the CPU, in a fixed order.
 *
 * Floor: the streams of a row are read twice (the active one three times), and written
 * once. */
#include "cuda/forward_internal.cuh"

enum {
    FEW = 4
}; /* streams of a kernel that has a token's numbers in registers */

/* Address of stream i of the block's row; -1: of the one at hand. */
template <class T>
static __device__ __forceinline__ T *stream(const struct forward_streams &a,
                                            int i)
{
    return (T *)a.x + (int64_t)blockIdx.x * a.ld + (int64_t)(i + 1) * a.width;
}

/* y[n], in shared memory = tanh(R norm(x)). */
template <class T>
static __device__ void modalities(const struct forward_streams &a, const T *x,
                                  float *y)
{
    int h = (int)a.width;
    double squares = 0, scale;

    for (int k = (int)threadIdx.x; k < h; k += ROW)
        squares += (double)load(x + k) * (double)load(x + k);
    scale = 1 / sqrt(block_sum<ROW>(squares) / (double)h + a.eps);
    for (int i = 0; i < a.n; i++) {
        double sum = 0;

        for (int k = (int)threadIdx.x; k < h; k += ROW)
            sum += (double)a.router[(int64_t)i * h + k] * (double)load(x + k);
        sum = block_sum<ROW>(sum);
        if (!threadIdx.x)
            y[i] = (float)tanh(scale * (double)(float)sum);
    }
    __syncthreads();
}

/* q[rows], in shared memory = W y, W [rows, n]. */
static __device__ void apply(const struct forward_streams &a, const float *y,
                             int rows, float *q)
{
    for (int i = (int)threadIdx.x; i < rows; i += ROW) {
        double sum = 0;

        for (int k = 0; k < a.n; k++)
            sum += (double)a.by[i * a.n + k] * (double)y[k];
        q[i] = (float)sum;
    }
    __syncthreads();
}

/* MOST: streams at most. */
template <class T, int MOST>
static __global__ void __launch_bounds__(ROW)
    predict_kernel(const struct forward_streams a)
{
    __shared__ float y[MOST], q[MOST * MOST];
    const int n = (int)a.n, active = (int)a.active;
    const int whole = MOST == FEW ? FEW : 1; /* what is unrolled */

    modalities<T>(a, stream<T>(a, active), y);
    apply(a, y, n * n, q);
    for (int k = (int)threadIdx.x; k < a.width; k += ROW) {
        float h[MOST];

#pragma unroll whole
        for (int i = 0; i < MOST; i++)
            h[i] = i < n ? load(stream<T>(a, i) + k) : 0;
#pragma unroll whole
        for (int j = 0; j < MOST; j++) {
            float to = 0;

            if (j >= n || (a.out && j != active))
                continue;
#pragma unroll whole
            for (int i = 0; i < MOST; i++)
                if (i < n)
                    to = __fadd_rn(to, __fmul_rn(q[j * n + i], h[i]));
            to = __fadd_rn(to, h[j]);
            if (!a.out)
                store(stream<T>(a, j) + k, to);
            if (j == active)
                store((a.out ? (T *)a.out + (int64_t)blockIdx.x * a.width :
                               stream<T>(a, -1)) +
                          k,
                      to);
        }
    }
}

template <class T>
static int predict_rows(struct cuda_context *c, const struct forward_streams *a,
                        struct err *e)
{
    if (a->n <= FEW)
        predict_kernel<T, FEW><<<(unsigned)a->rows, ROW, 0, c->stream>>>(*a);
    else
        predict_kernel<T, ALTUP_STREAMS>
            <<<(unsigned)a->rows, ROW, 0, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

int forward_predict(struct cuda_context *c, const struct forward_streams *a,
                    struct err *e)
{
    return a->rows ? BY_DTYPE(a->dtype, predict_rows, c, a, e) : 0;
}

template <class T>
static __global__ void __launch_bounds__(ROW)
    join_kernel(const struct forward_streams a)
{
    T *x = stream<T>(a, -1);
    int64_t at = (int64_t)blockIdx.x * a.width;

    for (int k = (int)threadIdx.x; k < a.width; k += ROW) {
        float sum = __fadd_rn(load(x + k), load((const T *)a.a + at + k));

        sum = __fadd_rn(sum, load((const T *)a.b + at + k));
        store(x + k, __fmul_rn(sum, 0.70710678118654752f));
    }
}

template <class T>
static int join_rows(struct cuda_context *c, const struct forward_streams *a,
                     struct err *e)
{
    join_kernel<T><<<(unsigned)a->rows, ROW, 0, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

int forward_join(struct cuda_context *c, const struct forward_streams *a,
                 struct err *e)
{
    return a->rows ? BY_DTYPE(a->dtype, join_rows, c, a, e) : 0;
}

template <class T>
static __global__ void __launch_bounds__(ROW)
    correct_kernel(const struct forward_streams a)
{
    __shared__ float y[ALTUP_STREAMS], q[ALTUP_STREAMS];
    const T *x = stream<T>(a, -1);
    int active = (int)a.active;
    T *out = (T *)a.out + (int64_t)blockIdx.x * a.width;

    modalities<T>(a, x, y);
    apply(a, y, (int)a.n, q);
    for (int k = (int)threadIdx.x; k < a.width; k += ROW) {
        float news = __fsub_rn(load(x + k), load(stream<T>(a, active) + k));

        for (int j = 0; j < a.n; j++) {
            T *to = stream<T>(a, j) + k;

            store(to, __fadd_rn(load(to), __fmul_rn(1 + q[j], news)));
            if (j == active)
                store(out + k,
                      a.scale ? __fmul_rn(load(to), a.scale[k]) : load(to));
        }
    }
}

template <class T>
static int correct_rows(struct cuda_context *c, const struct forward_streams *a,
                        struct err *e)
{
    correct_kernel<T><<<(unsigned)a->rows, ROW, 0, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

int forward_correct(struct cuda_context *c, const struct forward_streams *a,
                    struct err *e)
{
    return a->rows ? BY_DTYPE(a->dtype, correct_rows, c, a, e) : 0;
}

/* ---- sparse gates ---- */

template <class T>
static __global__ void __launch_bounds__(ROW)
    sparsify_kernel(T *g, int n, double cutoff)
{
    double sum = 0, squares = 0, mean;
    float least;

    g += (int64_t)blockIdx.x * n;
    for (int i = (int)threadIdx.x; i < n; i += ROW) {
        double x = load(g + i);

        sum += x;
        squares += x * x;
    }
    mean = block_sum<ROW>(sum) / n;
    squares = block_sum<ROW>(squares);
    least = (float)(mean + cutoff * sqrt(fmax(squares / n - mean * mean, 0.0)));
    for (int i = (int)threadIdx.x; i < n; i += ROW) {
        float x = load(g + i);

        store(g + i, x > least ? __fsub_rn(x, least) : 0.0f);
    }
}

template <class T>
static int sparsify_rows(struct cuda_context *c, double cutoff, void *g,
                         int64_t rows, int64_t n, struct err *e)
{
    sparsify_kernel<T>
        <<<(unsigned)rows, ROW, 0, c->stream>>>((T *)g, (int)n, cutoff);
    LAUNCHED();
    return 0;
}

int forward_sparsify(struct cuda_context *c, enum dtype t, double cutoff,
                     void *g, int64_t rows, int64_t n, struct err *e)
{
    return rows ? BY_DTYPE(t, sparsify_rows, c, cutoff, g, rows, n, e) : 0;
}

/* ---- sums ---- */

template <class T>
static __global__ void __launch_bounds__(ROW)
    add_times_kernel(T *x, int64_t ld, const T *y, float factor, int n)
{
    x += (int64_t)blockIdx.x * ld;
    y += (int64_t)blockIdx.x * n;
    for (int i = (int)threadIdx.x; i < n; i += ROW)
        store(x + i, __fadd_rn(rounded<T>(__fmul_rn(load(y + i), factor)),
                               load(x + i)));
}

template <class T>
static int add_times_rows(struct cuda_context *c,
                          const struct forward_add_times *a, struct err *e)
{
    add_times_kernel<T><<<(unsigned)a->rows, ROW, 0, c->stream>>>(
        (T *)a->x, a->ld, (const T *)a->y, a->factor, (int)a->n);
    LAUNCHED();
    return 0;
}

int forward_add_times(struct cuda_context *c, const struct forward_add_times *a,
                      struct err *e)
{
    return a->rows ? BY_DTYPE(a->dtype, add_times_rows, c, a, e) : 0;
}
