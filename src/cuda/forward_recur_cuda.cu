/* forward_recur_cuda.cu - linear attention of the forward pass, by what delta_heads()
 * of model/delta.c and mamba_heads() of model/mamba.c do: a convolution, the gates,
 * the states (forward_states_cuda.cu), and the norm of what comes out; and the gates
 * of attention's heads.
 *
 * All but the states is done by element or by head.  Floor: the convolution's
 * channels, f32, once to memory, and twice there and back. */
#include "cuda/recur_internal.cuh"

static __device__ __forceinline__ float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* ---- the convolution ---- */

/* Number of the sequence that row `row` is in. */
static __device__ int sequence_of(const struct recur_job &j, int64_t row)
{
    int low = 0, high = (int)j.a.n_sequences;

    while (high - low > 1) {
        int mid = (low + high) / 2;

        if (j.first[mid] <= row)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* Inputs of a channel: of row r at p[r * row]. */
template <class T> struct stream {
    const T *p;
    int64_t row;
    int channel;
};

template <class T>
static __device__ struct stream<T> stream_of(const struct recur_job &j,
                                             int channel) {
    int dim = (int)j.a.of.k_dim, at = channel - j.q_at;
    struct forward_heads h = j.a.q;

    if (channel >= j.v_at &&
        channel < j.v_at + j.each * (int)j.a.of.v_dim * (int)j.a.of.k_heads) {
        h = j.a.v;
        at = channel - j.v_at;
        dim = j.each * (int)j.a.of.v_dim;
    } else if (channel >= j.k_at &&
               channel < j.k_at + dim * (int)j.a.of.k_heads) {
        h = j.a.k;
        at = channel - j.k_at;
    }
    return { (const T *)h.p + at / dim * h.head + at % dim, h.row, channel };
}

/* The input of the `row`-th token of a sequence whose first row is `first`; of those
 * before it by the cache, or zero. */
template <class T>
static __device__ __forceinline__ float input(const struct recur_job &j,
                                              const struct stream<T> &s,
                                              int64_t first, int64_t row)
{
    if (row >= 0)
        return load(s.p + (first + row) * s.row);
    return j.a.old ?
               j.a.old[(j.a.of.kernel - 1 + row) * j.channels + s.channel] :
               0;
}

enum { CONV_ROWS = 8 }; /* rows of a thread */

template <class T>
static __global__ void __launch_bounds__(ROW)
    conv_kernel(const struct recur_job j)
{
    int channel = (int)(blockIdx.y * ROW + threadIdx.x);
    int64_t row = (int64_t)blockIdx.x * CONV_ROWS, end = row + CONV_ROWS;
    int kernel = (int)j.a.of.kernel, q = sequence_of(j, row);
    struct stream<T> s = stream_of<T>(j, channel);
    const float *w = j.a.filter + (int64_t)channel * kernel;

    if (channel >= j.channels)
        return;
    for (; row < end && row < j.a.rows; row++) {
        float sum = 0;

        while (row >= j.first[q + 1])
            q++;
        for (int i = 0; i < kernel; i++)
            sum = __fadd_rn(sum, __fmul_rn(w[i], input<T>(j, s, j.first[q],
                                                          row - j.first[q] -
                                                              kernel + 1 + i)));
        sum = rounded<T>(__fadd_rn(sum, j.a.bias ? j.a.bias[channel] : 0));
        j.mixed[row * j.channels + channel] =
            rounded<T>(sum / (1 + expf(-sum)));
    }
}

/* Keep the last inputs of the single sequence.  In ascending order: what is
 * overwritten is older than all that is still to be read. */
template <class T>
static __global__ void __launch_bounds__(ROW)
    keep_kernel(const struct recur_job j)
{
    int channel = (int)(blockIdx.x * ROW + threadIdx.x);
    struct stream<T> s = stream_of<T>(j, channel);

    for (int64_t i = 0; channel < j.channels && i < j.a.of.kernel - 1; i++)
        j.a.old[i * j.channels + channel] =
            input<T>(j, s, 0, j.a.rows - j.a.of.kernel + 1 + i);
}

/* ---- in front of the states ---- */

/* q and k over their lengths, q over sqrt(k_dim), too: a warp for a head. */
static __global__ void __launch_bounds__(ROW)
    normalize_kernel(const struct recur_job j)
{
    int64_t i = (int64_t)blockIdx.x * (ROW / WARP) + threadIdx.x / WARP;
    int heads = (int)j.a.of.k_heads, n = (int)j.a.of.k_dim;
    int head = (int)(i % (2 * heads)), lane = (int)threadIdx.x % WARP;
    int64_t row = i / (2 * heads);
    bool key = head >= heads;
    float *x =
        j.mixed + row * j.channels + (key ? j.k_at : j.q_at) + head % heads * n;
    float sum = 0, scale;

    if (row >= j.a.rows)
        return;
    for (int k = lane; k < n; k += WARP)
        sum += x[k] * x[k];
    scale = (key ? 1 : 1 / sqrtf((float)n)) / sqrtf(warp_sum(sum) + 1e-6f);
    for (int k = lane; k < n; k += WARP)
        x[k] *= scale;
}

/* Element i of the gates in front of value head v. */
template <class T>
static __device__ __forceinline__ float gate_at(const struct recur_job &j,
                                                const struct forward_heads &h,
                                                int64_t row, int v, int i)
{
    return load((const T *)h.p + row * h.row + v / j.each * h.head + i);
}

template <class T>
static __global__ void __launch_bounds__(ROW)
    gates_kernel(const struct recur_job j)
{
    int heads = (int)j.a.of.v_heads;

    EACH(i, j.a.rows * heads * j.gates)
    {
        int64_t head = i / j.gates, row = head / heads;
        int v = (int)(head % heads), k = (int)(i % j.gates), at = v % j.each;
        float rate = -expf(j.a.decay[v]), b;
        float x =
            gate_at<T>(j, j.a.a, row, v, at + k) + j.a.shift[v * j.gates + k];

        if (j.a.form == DELTA_MAMBA) {
            b = rounded<T>(softplus(rounded<T>(x)));
            b = fminf(fmaxf(b, (float)j.a.of.step_min), (float)j.a.of.step_max);
            j.decay[i] = expf(rate * b);
        } else {
            b = rounded<T>(sigmoid(gate_at<T>(j, j.a.b, row, v, at)));
            j.decay[i] = expf(rate * softplus(x));
        }
        if (!k)
            j.beta[head] = b;
    }
}

/* ---- behind the states ---- */

/* RMSNorm(o) silu(z), or of DELTA_CHANNELS RMSNorm(o) sigmoid(z): a warp for a value
 * head. */
template <class T>
static __global__ void __launch_bounds__(ROW)
    delta_end_kernel(const struct recur_job j)
{
    int64_t i = (int64_t)blockIdx.x * (ROW / WARP) + threadIdx.x / WARP;
    int heads = (int)j.a.of.v_heads, n = (int)j.a.of.v_dim;
    int v = (int)(i % heads), lane = (int)threadIdx.x % WARP;
    int64_t row = i / heads;
    const float *o = j.mixed + row * j.channels + j.v_at + v * n;
    T *out = (T *)j.a.out + i * n;
    float sum = 0, scale;

    if (row >= j.a.rows)
        return;
    for (int k = lane; k < n; k += WARP)
        sum += rounded<T>(o[k]) * rounded<T>(o[k]);
    scale = 1 / sqrtf(warp_sum(sum) / (float)n + (float)j.a.eps);
    for (int k = lane; k < n; k += WARP) {
        float z = gate_at<T>(j, j.a.z, row, v, v % j.each * n + k);
        float x = rounded<T>(o[k]), w = j.a.norm[k];

        if (j.a.form == DELTA_CHANNELS)
            store(out + k, x * (scale * w / (1 + expf(-z))));
        else
            store(out + k,
                  rounded<T>(rounded<T>(x * scale) * w) * (z / (1 + expf(-z))));
    }
}

/* RMSNorm(y silu(z)), over all heads of a group: a block for a group. */
template <class T>
static __global__ void __launch_bounds__(ROW)
    mamba_end_kernel(const struct recur_job j)
{
    int groups = (int)j.a.of.k_heads, n = j.each * (int)j.a.of.v_dim;
    int64_t row = blockIdx.x / groups;
    int group = (int)(blockIdx.x % groups);
    float *y = j.mixed + row * j.channels + j.v_at + group * n;
    const T *z = (const T *)j.a.z.p + row * j.a.z.row + group * j.a.z.head;
    T *out = (T *)j.a.out + (int64_t)blockIdx.x * n;
    double sum = 0;
    float scale;

    for (int k = (int)threadIdx.x; k < n; k += ROW) {
        float g = load(z + k), x = y[k] * (g / (1 + expf(-g)));

        y[k] = x;
        sum += (double)x * (double)x;
    }
    sum = block_sum<ROW>(sum);
    scale = (float)(1 / sqrt(sum / (double)n + j.a.eps));
    for (int k = (int)threadIdx.x; k < n; k += ROW)
        store(out + k, y[k] * (scale * j.a.norm[group * n + k]));
}

/* ---- the whole ---- */

static size_t padded_bytes(int64_t n, size_t size)
{
    return ((size_t)n * size + 255) / 256 * 256;
}

/* Sizes and work memory. */
static int job_of(struct cuda_context *c, const struct forward_recur *a,
                  struct recur_job *j, struct err *e)
{
    const struct delta *d = &a->of;
    int64_t keys = d->k_heads * d->k_dim, inner = d->v_heads * d->v_dim;
    bool mamba = a->form == DELTA_MAMBA;
    int64_t gates = a->form == DELTA_CHANNELS ? d->k_dim : 1;
    size_t first = padded_bytes(a->n_sequences + 1, sizeof(*a->first));
    size_t mixed = padded_bytes(a->rows * (inner + 2 * keys), sizeof(float));
    size_t decay = padded_bytes(a->rows * d->v_heads * gates, sizeof(float));
    size_t beta = padded_bytes(a->rows * d->v_heads, sizeof(float));
    struct forward_state *s;
    char *p;

    if (d->k_dim > HEAD_DIM_MAX)
        return err_set(e, E_BUG, "cuda: keys of linear attention are too wide");
    if (forward_state(c, &s, e) < 0 ||
        buffer_need(c, &s->recurs, first + mixed + decay + beta, e) < 0)
        return e->code;
    p = (char *)s->recurs.data;
    *j = { *a };
    j->channels = (int)(inner + 2 * keys);
    j->q_at = mamba ? (int)(inner + keys) : 0;
    j->k_at = mamba ? (int)inner : (int)keys;
    j->v_at = mamba ? 0 : 2 * (int)keys;
    j->each = (int)(d->v_heads / d->k_heads);
    j->gates = (int)gates;
    j->first = (const int64_t *)p;
    j->mixed = (float *)(p + first);
    j->decay = (float *)(p + first + mixed);
    j->beta = (float *)(p + first + mixed + decay);
    return upload(c, p, a->first,
                  (size_t)(a->n_sequences + 1) * sizeof(*a->first), e);
}

/* Blocks with a warp for each of n. */
static unsigned warps_for(int64_t n)
{
    return (unsigned)((n + ROW / WARP - 1) / (ROW / WARP));
}

template <class T>
static int run_recur(struct cuda_context *c, const struct recur_job &j,
                     struct err *e)
{
    const struct delta *d = &j.a.of;
    unsigned across = (unsigned)((j.channels + ROW - 1) / ROW);
    dim3 grid((unsigned)((j.a.rows + CONV_ROWS - 1) / CONV_ROWS), across);
    bool mamba = j.a.form == DELTA_MAMBA;

    conv_kernel<T><<<grid, ROW, 0, c->stream>>>(j);
    LAUNCHED();
    if (j.a.old)
        keep_kernel<T><<<across, ROW, 0, c->stream>>>(j);
    LAUNCHED();
    if (!mamba)
        normalize_kernel<<<warps_for(2 * j.a.rows * d->k_heads), ROW, 0,
                           c->stream>>>(j);
    LAUNCHED();
    gates_kernel<T>
        <<<blocks_for(j.a.rows * d->v_heads * j.gates), ROW, 0, c->stream>>>(j);
    LAUNCHED();
    if (recur_states(c, j, e) < 0)
        return e->code;
    if (mamba)
        mamba_end_kernel<T>
            <<<(unsigned)(j.a.rows * d->k_heads), ROW, 0, c->stream>>>(j);
    else
        delta_end_kernel<T>
            <<<warps_for(j.a.rows * d->v_heads), ROW, 0, c->stream>>>(j);
    LAUNCHED();
    return 0;
}

int forward_recur(struct cuda_context *c, const struct forward_recur *a,
                  struct err *e)
{
    struct recur_job j;

    if (!a->rows)
        return 0;
    if (job_of(c, a, &j, e) < 0)
        return e->code;
    return BY_DTYPE(a->dtype, run_recur, c, j, e);
}

/* ---- attention's gates ---- */

/* A warp for a head. */
template <class T>
static __global__ void __launch_bounds__(ROW)
    gate_heads_kernel(const struct forward_gate_heads a)
{
    int64_t i = (int64_t)blockIdx.x * (ROW / WARP) + threadIdx.x / WARP;
    const T *g =
        (const T *)a.g.p + i / a.heads * a.g.row + i % a.heads * a.g.head;
    T *out = (T *)a.out + i * a.dim;

    if (i >= a.rows * a.heads)
        return;
    for (int k = (int)threadIdx.x % WARP; k < a.dim; k += WARP)
        store(out + k,
              __fmul_rn(load(out + k), rounded<T>(sigmoid(load(g + k)))));
}

template <class T>
static int gate_heads(struct cuda_context *c,
                      const struct forward_gate_heads *a, struct err *e)
{
    gate_heads_kernel<T>
        <<<warps_for(a->rows * a->heads), ROW, 0, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

int forward_gate_heads(struct cuda_context *c,
                       const struct forward_gate_heads *a, struct err *e)
{
    return a->rows ? BY_DTYPE(a->dtype, gate_heads, c, a, e) : 0;
}
