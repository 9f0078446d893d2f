/* forward_codes_cuda.cu - weights of the forward pass from 4-bit codes: a quarter
 * of the bytes cross from the host. */
#include "cuda/forward_internal.cuh"

/* Eight codes, which are a word of a row, a thread; W[rows, depth].  Floor: half a
 * byte read of each, an element written. */
template <class T>
static __global__ void codes_kernel(const uint32_t *words, const uint32_t *meta,
                                    const float *scales, uint64_t n,
                                    uint64_t depth, uint64_t group, T *w)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t groups = (depth + group - 1) / group;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += step) {
        uint64_t r = i * 8 / depth, k = i * 8 % depth;
        uint32_t word = words[i];

        for (int b = 0; b < 8; b++) {
            uint32_t m = meta[r * groups + (k + b) / group];
            float s = scales[m & 0xffff];
            int code = (int)(word >> 4 * b & 15) - meta_zero(m);

            store(w + i * 8 + b,
                  __fmul_rn((float)code, m >> 24 & QUANT_NEGATIVE ? -s : s));
        }
    }
}

template <class T>
static int place_codes(struct cuda_context *c, const struct forward_codes *a,
                       void *w, struct err *e)
{
    uint64_t n = (uint64_t)(a->rows * a->depth) / 8;
    size_t metas = (size_t)a->rows *
                   quant_groups((uint64_t)a->depth, a->group) *
                   sizeof(*a->meta);
    const float *scales;
    int rc;

    if ((rc = context_scales(c, a->scale_dtype, &scales, e)) < 0 ||
        (rc = buffer_need(c, &c->codes, n * 4, e)) < 0 ||
        (rc = buffer_need(c, &c->meta, metas, e)) < 0 ||
        (rc = upload(c, c->codes.data, a->nibbles, n * 4, e)) < 0 ||
        (rc = upload(c, c->meta.data, a->meta, metas, e)) < 0)
        return rc;
    codes_kernel<<<4096, 256, 0, c->stream>>>(
        (const uint32_t *)c->codes.data, (const uint32_t *)c->meta.data, scales,
        n, (uint64_t)a->depth, a->group, (T *)w);
    LAUNCHED();
    return 0;
}

/* In slices of rows, which pass through c->codes. */
static int place_fp8(struct cuda_context *c, const struct fp8_matrix *m,
                     uint16_t *w, struct err *e)
{
    enum { SLICE_CODES = 16 << 20 };
    uint64_t most = SLICE_CODES / m->cols + 1;

    most = most < m->rows ? most : m->rows;
    for (uint64_t r = 0; r < m->rows; r += most) {
        uint64_t n = m->rows - r < most ? m->rows - r : most;
        int rc;

        if ((rc = buffer_need(c, &c->codes, fp8_room(m, n), e)) < 0 ||
            (rc = fp8_widen(c, m, r, n, w + r * m->cols, c->codes.data, e)) < 0)
            return rc;
    }
    return 0;
}

int forward_fp8(struct cuda_context *c, const struct fp8_matrix *m, void **w,
                struct err *e)
{
    bool spilled;
    int rc = forward_alloc(c, w, m->rows * m->cols * 2, false, &spilled, e);

    if (rc >= 0 && (rc = place_fp8(c, m, (uint16_t *)*w, e)) < 0) {
        forward_release(c, *w);
        *w = NULL;
    }
    return rc;
}

int forward_codes(struct cuda_context *c, const struct forward_codes *a,
                  void **w, struct err *e)
{
    size_t n = (size_t)(a->rows * a->depth) * (a->dtype == DT_BF16 ? 2 : 4);
    bool spilled;
    int rc;

    if (a->depth % 8)
        return err_set(e, E_CONFIG, "the GPU takes codes in words of eight");
    rc = forward_alloc(c, w, n, false, &spilled, e);
    if (rc >= 0 && (rc = BY_DTYPE(a->dtype, place_codes, c, a, *w, e)) < 0) {
        forward_release(c, *w);
        *w = NULL;
    }
    return rc;
}
