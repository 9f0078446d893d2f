/* forward_cuda.cu - the forward pass on the GPU: memory, norms, gates, residual
 * sums, gather and scatter of experts' rows.  All kernels here are bound by
 * memory bandwidth: each row is read and written once, 16 bytes per thread. */
#include "cuda/forward_internal.cuh"
#include "cuda/w4a16_internal.cuh"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- memory ---- */

enum { TOUCHERS = 16, PAGE = 4096, LARGE_PAGE = 2 << 20, HOST_MAPS = 64 << 20 };

/* An allocation of the forward pass. */
struct held {
    struct held *next;
    void *p;
    struct device_buffer room; /* data NULL: in host memory instead */
    size_t mapped; /* bytes of host memory by host_map(); 0: by others */
};
static struct held *held;

/* A thread's part of fresh memory. */
struct fresh {
    char *p;
    size_t n;
    pthread_t thread;
    bool running;
};

static void *touch(void *arg)
{
    const struct fresh *f = (const struct fresh *)arg;

    for (size_t i = 0; i < f->n; i += PAGE)
        ((volatile char *)f->p)[i] = 0;
    return NULL;
}

/* Pinned memory of zeros.  cudaHostAlloc() makes pages by one thread, 2.4 GB/s; large
 * pages that several threads touch, and that are pinned then, 25 GB/s. */
static int host_map(struct held *h, size_t n, struct err *e)
{
    struct fresh f[TOUCHERS] = {};
    size_t part = (n / TOUCHERS + LARGE_PAGE) / LARGE_PAGE * LARGE_PAGE;
    int rc;

    h->p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                -1, 0);
    if (h->p == MAP_FAILED)
        return err_set(e, E_TEMP, "%zu bytes of host memory:", n);
    madvise(h->p, n, MADV_HUGEPAGE);
    for (size_t i = 0, at = 0; at < n; i++, at += part) {
        f[i] = { (char *)h->p + at, n - at < part ? n - at : part };
        f[i].running = !pthread_create(&f[i].thread, NULL, touch, &f[i]);
        if (!f[i].running)
            touch(&f[i]);
    }
    for (size_t i = 0; i < TOUCHERS; i++)
        if (f[i].running)
            pthread_join(f[i].thread, NULL);
    rc = cuda_check(cudaHostRegister(h->p, n, cudaHostRegisterPortable),
                    "cudaHostRegister", e);
    if (rc < 0)
        munmap(h->p, n);
    else
        h->mapped = n;
    return rc;
}

static int host_alloc(struct held *h, size_t n, struct err *e)
{
    return n < HOST_MAPS ?
               cuda_check(cudaHostAlloc(&h->p, n, cudaHostAllocPortable),
                          "cudaHostAlloc", e) :
               host_map(h, n, e);
}

int forward_state(struct cuda_context *c, struct forward_state **s,
                  struct err *e)
{
    static struct forward_state state; /* a process has one context */

    (void)c;
    (void)e;
    *s = &state;
    return 0;
}

int forward_alloc(struct cuda_context *c, void **p, size_t n, bool spill,
                  bool *spilled, struct err *e)
{
    struct held *h = (struct held *)mem_zero(1, sizeof(*h), "cuda", e);
    int rc;

    *p = NULL;
    if (!h)
        return e->code;
    rc = buffer_open(c, &h->room, n, e);
    h->p = h->room.data;
    *spilled = rc == E_TEMP && spill;
    if (*spilled)
        rc = host_alloc(h, n, e);
    if (rc < 0) {
        free(h);
        return rc;
    }
    h->next = held;
    held = h;
    *p = h->p;
    return 0;
}

int forward_pinned(struct cuda_context *c, void **p, size_t n, struct err *e)
{
    struct held *h = (struct held *)mem_zero(1, sizeof(*h), "cuda", e);
    int rc = h ? cuda_check(cudaHostAlloc(&h->p, n, cudaHostAllocPortable),
                            "cudaHostAlloc", e) :
                 e->code;

    (void)c;
    *p = NULL;
    if (rc < 0) {
        free(h);
        return rc;
    }
    memset(h->p, 0, n);
    h->next = held;
    held = h;
    *p = h->p;
    return 0;
}

void forward_release(struct cuda_context *c, void *p)
{
    struct held **at = &held, *h;

    while (p && *at && (*at)->p != p)
        at = &(*at)->next;
    h = *at;
    if (!p || !h)
        return;
    *at = h->next;
    if (h->room.data) {
        buffer_close(c, &h->room);
    } else {
        cudaStreamSynchronize(c->stream); /* kernels may still read it */
        if (h->mapped) {
            cudaHostUnregister(h->p);
            munmap(h->p, h->mapped);
        } else {
            cudaFreeHost(h->p);
        }
    }
    free(h);
}

static int forward_put(struct cuda_context *c, void *to, const void *host,
                       size_t n, struct err *e)
{
    return upload(c, to, host, n, e);
}

static int forward_get(struct cuda_context *c, void *host, const void *from,
                       size_t n, struct err *e)
{
    return download(c, host, from, n, e);
}

static int forward_copy(struct cuda_context *c, void *to, const void *from,
                        size_t n, struct err *e)
{
    CUDA_TRY(cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, c->stream));
    return 0;
}

static int forward_copy_rows(struct cuda_context *c, void *to, size_t to_row,
                             const void *from, size_t from_row, size_t n,
                             int64_t rows, struct err *e)
{
    if (rows && n)
        CUDA_TRY(cudaMemcpy2DAsync(to, to_row, from, from_row, n, (size_t)rows,
                                   cudaMemcpyDefault, c->stream));
    return 0;
}

static int forward_zero(struct cuda_context *c, void *to, size_t n,
                        struct err *e)
{
    CUDA_TRY(cudaMemsetAsync(to, 0, n, c->stream));
    return 0;
}

static int forward_weight(struct cuda_context *c, enum dtype t, int64_t rows,
                          int64_t depth, const void *host, void **w,
                          struct err *e)
{
    size_t n = (size_t)(rows * depth) * (t == DT_BF16 ? 2 : 4);
    bool spilled;
    int rc = forward_alloc(c, w, n, false, &spilled, e);

    if (rc >= 0 && (rc = upload(c, *w, host, n, e)) < 0) {
        forward_release(c, *w);
        *w = NULL;
    }
    return rc;
}

static int forward_linear(struct cuda_context *c,
                          const struct forge_w4a16_linear *l,
                          struct cuda_w4 **w, struct err *e)
{
    return cuda_w4_prepare(c, w, l, e);
}

static void drop_linear(struct cuda_context *c, struct cuda_w4 *w)
{
    (void)c;
    cuda_w4_release(w);
}

/* ---- norms ---- */

template <class T>
static __device__ __forceinline__ void norm_one(const T *x, const float *w,
                                                float scale, T *out)
{
    store(out, __fmul_rn(rounded<T>(__fmul_rn(load(x), scale)), *w));
}

/* One block per row; the second read of the row comes from the cache. */
template <class T, bool WIDE>
static __global__ void __launch_bounds__(ROW)
    norm_kernel(const T *x, int64_t ld, const float *w, int n, float eps,
                T *out)
{
    const int k = pack<T>::n;
    float sum = 0, scale;

    x += blockIdx.x * ld;
    out += (int64_t)blockIdx.x * n;
    if (WIDE)
        for (int i = threadIdx.x * k; i < n; i += ROW * k) {
            pack<T> p = *(const pack<T> *)(x + i);

            for (int j = 0; j < k; j++)
                sum += load(p.x + j) * load(p.x + j);
        }
    else
        for (int i = threadIdx.x; i < n; i += ROW)
            sum += load(x + i) * load(x + i);
    sum = block_sum<ROW>(sum);
    scale = 1.0f / sqrtf(sum / (float)n + eps);
    if (WIDE)
        for (int i = threadIdx.x * k; i < n; i += ROW * k) {
            pack<T> p = *(const pack<T> *)(x + i);

            for (int j = 0; j < k; j++)
                norm_one(p.x + j, w + i + j, scale, p.x + j);
            *(pack<T> *)(out + i) = p;
        }
    else
        for (int i = threadIdx.x; i < n; i += ROW)
            norm_one(x + i, w + i, scale, out + i);
}

template <class T>
static int norm_rows(struct cuda_context *c, const struct forward_norm *a,
                     struct err *e)
{
    const T *x = (const T *)a->x;
    T *out = (T *)a->out;
    bool wide = aligned_rows(x, a->n, a->ld) && aligned_rows(out, a->n, a->n);

    if (wide)
        norm_kernel<T, true><<<(unsigned)a->rows, ROW, 0, c->stream>>>(
            x, a->ld, a->w, (int)a->n, a->eps, out);
    else
        norm_kernel<T, false><<<(unsigned)a->rows, ROW, 0, c->stream>>>(
            x, a->ld, a->w, (int)a->n, a->eps, out);
    LAUNCHED();
    return 0;
}

int forward_norm(struct cuda_context *c, const struct forward_norm *a,
                 struct err *e)
{
    return a->rows ? BY_DTYPE(a->dtype, norm_rows, c, a, e) : 0;
}

/* ---- operations on single rows ---- */

/* x += sigmoid(in w) y, one block per row: the gate of a shared expert. */
template <class T>
static __global__ void __launch_bounds__(ROW)
    gate_kernel(const T *in, const T *y, const float *w, int n, T *x)
{
    int64_t at = (int64_t)blockIdx.x * n;
    double sum = 0;
    float g;

    for (int i = threadIdx.x; i < n; i += ROW)
        sum += (double)load(in + at + i) * (double)w[i];
    g = (float)(1 / (1 + exp(-block_sum<ROW>(sum))));
    for (int i = threadIdx.x; i < n; i += ROW) {
        float t = rounded<T>(__fmul_rn(load(y + at + i), g));

        store(x + at + i, __fadd_rn(t, load(x + at + i)));
    }
}

template <class T>
static int gate_rows(struct cuda_context *c, const struct forward_gate *a,
                     struct err *e)
{
    gate_kernel<T><<<(unsigned)a->rows, ROW, 0, c->stream>>>(
        (const T *)a->in, (const T *)a->y, a->w, (int)a->n, (T *)a->x);
    LAUNCHED();
    return 0;
}

static int forward_gate(struct cuda_context *c, const struct forward_gate *a,
                        struct err *e)
{
    return a->rows ? BY_DTYPE(a->dtype, gate_rows, c, a, e) : 0;
}

template <class T>
static __global__ void __launch_bounds__(ROW)
    add_kernel(T *x, const float *y, int64_t n)
{
    EACH(i, n)
    store(x + i, __fadd_rn(rounded<T>(y[i]), load(x + i)));
}

template <class T>
static int add_all(struct cuda_context *c, void *x, const float *y, int64_t n,
                   struct err *e)
{
    add_kernel<T><<<blocks_for(n), ROW, 0, c->stream>>>((T *)x, y, n);
    LAUNCHED();
    return 0;
}

static int forward_add(struct cuda_context *c, enum dtype t, void *x,
                       const float *y, int64_t n, struct err *e)
{
    return n ? BY_DTYPE(t, add_all, c, x, y, n, e) : 0;
}

template <class T>
static __global__ void __launch_bounds__(ROW)
    subtract_kernel(T *to, const T *a, const T *b, const float *bias,
                    int64_t all_n, int64_t n)
{
    EACH(i, all_n)
    {
        float t = __fsub_rn(load(a + i), load(b + i));

        store(to + i, bias ? __fsub_rn(t, bias[i % n]) : t);
    }
}

template <class T>
static int subtract_all(struct cuda_context *c,
                        const struct forward_difference *d, struct err *e)
{
    subtract_kernel<T><<<blocks_for(d->rows * d->n), ROW, 0, c->stream>>>(
        (T *)d->to, (const T *)d->a, (const T *)d->b, d->bias, d->rows * d->n,
        d->n);
    LAUNCHED();
    return 0;
}

static int forward_subtract(struct cuda_context *c,
                            const struct forward_difference *d, struct err *e)
{
    return d->rows > 0 && d->n > 0 ? BY_DTYPE(d->dtype, subtract_all, c, d, e) :
                                     0;
}

/* ---- experts ---- */

template <class T, bool WIDE>
static __global__ void __launch_bounds__(ROW)
    gather_kernel(T *to, const T *from, const int64_t *slot, int64_t top_k,
                  const float *by, int n)
{
    const int k = pack<T>::n;
    float w = by ? by[slot[blockIdx.x]] : 1;

    to += (int64_t)blockIdx.x * n;
    from += slot[blockIdx.x] / top_k * n;
    if (by)
        for (int i = threadIdx.x; i < n; i += ROW)
            store(to + i, __fmul_rn(load(from + i), w));
    else if (WIDE)
        for (int i = threadIdx.x * k; i < n; i += ROW * k)
            *(pack<T> *)(to + i) = *(const pack<T> *)(from + i);
    else
        for (int i = threadIdx.x; i < n; i += ROW)
            to[i] = from[i];
}

template <class T>
static int gather_rows(struct cuda_context *c, const struct forward_rows *r,
                       void *to, const void *from, struct err *e)
{
    const T *x = (const T *)from;
    T *y = (T *)to;

    if (aligned_rows(x, r->n, r->n) && aligned_rows(y, r->n, r->n))
        gather_kernel<T, true><<<(unsigned)r->rows, ROW, 0, c->stream>>>(
            y, x, r->slot, r->top_k, r->by, (int)r->n);
    else
        gather_kernel<T, false><<<(unsigned)r->rows, ROW, 0, c->stream>>>(
            y, x, r->slot, r->top_k, r->by, (int)r->n);
    LAUNCHED();
    return 0;
}

int forward_gather(struct cuda_context *c, const struct forward_rows *r,
                   void *to, const void *from, struct err *e)
{
    return r->rows ? BY_DTYPE(r->dtype, gather_rows, c, r, to, from, e) : 0;
}

/* sum of a token += weight * out.  A token occurs at most once among the rows
 * of an expert, so no two blocks add to the same token; experts run one after
 * the other in the stream, so the order of the sums is fixed. */
template <class T>
static __global__ void __launch_bounds__(ROW)
    scatter_kernel(float *sum, const float *weight, const T *out,
                   const int64_t *slot, int64_t top_k, int n, double *squares)
{
    int64_t s = slot[blockIdx.x];
    float w = weight[s];
    double total = 0;

    out += (int64_t)blockIdx.x * n;
    if (sum)
        sum += s / top_k * n;
    for (int i = threadIdx.x; i < n; i += ROW) {
        float y = load(out + i);

        total += (double)y * (double)y;
        if (sum)
            sum[i] = __fadd_rn(sum[i], __fmul_rn(w, y));
    }
    total = block_sum<ROW>(total);
    if (!threadIdx.x)
        squares[blockIdx.x] = total;
}

template <class T>
static int scatter_rows(struct cuda_context *c, const struct forward_rows *r,
                        float *sum, const float *weight, const void *out,
                        double *squares, struct err *e)
{
    scatter_kernel<T><<<(unsigned)r->rows, ROW, 0, c->stream>>>(
        sum, weight, (const T *)out, r->slot, r->top_k, (int)r->n, squares);
    LAUNCHED();
    return 0;
}

static int forward_scatter(struct cuda_context *c, const struct forward_rows *r,
                           float *sum, const float *weight, const void *out,
                           double *squares, struct err *e)
{
    return r->rows ? BY_DTYPE(r->dtype, scatter_rows, c, r, sum, weight, out,
                              squares, e) :
                     0;
}

template <class T>
static __global__ void __launch_bounds__(ROW)
    add_share_kernel(T *to, const T *from, const float *share,
                     const T *reference, const T *x, const int64_t *slot,
                     int64_t top_k, int n)
{
    int64_t s = slot[blockIdx.x], at = s / top_k * n;
    int64_t row = (int64_t)blockIdx.x * n;
    float part = share[s];

    for (int i = threadIdx.x; i < n; i += ROW) {
        float gap = __fsub_rn(load(reference + at + i), load(x + at + i));

        store(to + row + i,
              __fadd_rn(load(from + row + i), __fmul_rn(part, gap)));
    }
}

template <class T>
static int add_share_rows(struct cuda_context *c, const struct forward_rows *r,
                          void *to, const void *from, const float *share,
                          const void *reference, const void *x, struct err *e)
{
    add_share_kernel<T><<<(unsigned)r->rows, ROW, 0, c->stream>>>(
        (T *)to, (const T *)from, share, (const T *)reference, (const T *)x,
        r->slot, r->top_k, (int)r->n);
    LAUNCHED();
    return 0;
}

static int forward_add_share(struct cuda_context *c,
                             const struct forward_rows *r, void *to,
                             const void *from, const float *share,
                             const void *reference, const void *x,
                             struct err *e)
{
    return r->rows ? BY_DTYPE(r->dtype, add_share_rows, c, r, to, from, share,
                              reference, x, e) :
                     0;
}

/* ---- check for infinities and NaN ---- */

/* Every thread that finds one writes the same value: a race without harm. */
template <class T>
static __global__ void __launch_bounds__(ROW)
    finite_kernel(const T *x, int64_t n, unsigned long long *bad)
{
    bool mine = false;

    EACH(i, n)
    mine |= !isfinite(load(x + i));
    if (mine)
        *bad = 1;
}

template <class T>
static int finite_all(struct cuda_context *c, const void *x, int64_t n,
                      struct err *e)
{
    finite_kernel<T><<<blocks_for(n / 16 + 1), ROW, 0, c->stream>>>(
        (const T *)x, n, c->bad);
    LAUNCHED();
    return 0;
}

static int forward_finite(struct cuda_context *c, enum dtype t, const void *x,
                          int64_t n, bool *yes, struct err *e)
{
    unsigned long long bad;
    int rc;

    CUDA_TRY(cudaMemsetAsync(c->bad, 0, sizeof(bad), c->stream));
    if ((rc = BY_DTYPE(t, finite_all, c, x, n, e)) < 0)
        return rc;
    CUDA_TRY(cudaMemcpyAsync(&bad, c->bad, sizeof(bad), cudaMemcpyDeviceToHost,
                             c->stream));
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    *yes = !bad;
    return 0;
}

/* ---- the table ---- */

extern "C" __attribute__((visibility("default")))
const struct forward_table forge_forward_table = {
    FORWARD_TABLE_VERSION, forward_alloc,     forward_release,
    context_room,          forward_put,       forward_get,
    forward_copy,          forward_copy_rows, forward_zero,
    forward_weight,        forward_codes,     forward_fp8,
    forward_linear,        drop_linear,       forward_norm,
    forward_product,       forward_sums,      forward_draw,
    forward_route,         forward_attend,    forward_turn,
    forward_gate_heads,    forward_recur,     forward_gate,
    forward_pair,          forward_add,       forward_add_times,
    forward_predict,       forward_join,      forward_correct,
    forward_sparsify,      forward_subtract,  forward_gather,
    forward_scatter,       forward_experts,   forward_add_share,
    forward_finite,
};
