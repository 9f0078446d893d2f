/* fp8_cuda.cu - weights of 8-bit floats to bf16, as common/math/fp8.h has it, to the bit:
 * the codes cross to the device, half of what bf16 would be, and are widened there. */
#include "cuda/internal.cuh"

#include <math.h>
#include <string.h>

enum { THREADS = 256, PIECE_CODES = 16, ALIGN = 64 };

/* Codes [rows, cols], row 0 being the matrix's row `first`; scales from the blocks of that
 * row on. */
struct widen_args {
    uint16_t *to;
    const uint8_t *codes;
    const float *scale;
    uint64_t rows, cols, first;
    uint64_t block_rows, block_cols, across;
    uint32_t invalid; /* what the host's 0 x infinity is */
    bool e5m2;
};

/* The value of a code without sign. */
static __device__ __forceinline__ float value_of(uint32_t x, bool e5m2)
{
    uint32_t m = e5m2 ? x & 3 : x & 7, e = e5m2 ? x >> 2 : x >> 3;

    if (e5m2 && e == 31)
        return __uint_as_float(0x7f800000 | m << 21 | (m ? 0x00400000 : 0));
    if (!e5m2 && x == 0x7f)
        return __uint_as_float(0x7fc00000);
    if (!e)
        return (float)m * (e5m2 ? 0x1p-16f : 0x1p-9f);
    return __uint_as_float(e5m2 ? (e + 112) << 23 | m << 21 :
                                  (e + 120) << 23 | m << 20);
}

/* The bits of v s in bf16; NaN as processors pass it on: v's, else s's, else a new one. */
static __device__ __forceinline__ uint32_t product(float v, float s,
                                                   uint32_t invalid)
{
    float x = __fmul_rn(v, s);
    uint32_t u = __float_as_uint(x);

    if (!isnan(x))
        return (u + 0x7fff + (u >> 16 & 1)) >> 16;
    u = isnan(v) ? __float_as_uint(v) : isnan(s) ? __float_as_uint(s) : invalid;
    return u >> 16 | 0x40;
}

/* A thread widens PIECE_CODES codes of a row; WHOLE: all pieces are whole and aligned.
 * Deterministic: an element is one thread's.  Floor: 3 bytes per weight. */
template <bool WHOLE>
static __global__ void __launch_bounds__(THREADS)
    fp8_widen_kernel(const struct widen_args a)
{
    __shared__ float value[128];
    uint64_t pieces = (a.cols + PIECE_CODES - 1) / PIECE_CODES;
    uint64_t step = (uint64_t)gridDim.x * THREADS;

    if (threadIdx.x < 128)
        value[threadIdx.x] = value_of(threadIdx.x, a.e5m2);
    __syncthreads();
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
         i < a.rows * pieces; i += step) {
        uint64_t row = i / pieces, col = i % pieces * PIECE_CODES;
        uint64_t band = (a.first + row) / a.block_rows - a.first / a.block_rows;
        const float *scale = a.scale + band * a.across;
        uint64_t left = a.cols - col, block = col / a.block_cols;
        uint64_t next = (block + 1) * a.block_cols - col;
        uint32_t n = left < PIECE_CODES ? (uint32_t)left : PIECE_CODES;
        union {
            uint4 words[2];
            uint16_t half[PIECE_CODES];
        } out;
        union {
            uint4 words;
            uint8_t code[PIECE_CODES];
        } in;
        float s = scale[block];

        if (WHOLE)
            in.words = *(const uint4 *)(a.codes + row * a.cols + col);
#pragma unroll
        for (uint32_t k = 0; k < PIECE_CODES; k++) {
            uint32_t x;

            if (!WHOLE && k >= n)
                break;
            if (k == next) {
                s = scale[++block];
                next += a.block_cols;
            }
            x = WHOLE ? in.code[k] : a.codes[row * a.cols + col + k];
            out.half[k] = (uint16_t)(product(value[x & 0x7f], s, a.invalid) ^
                                     (x & 0x80) << 8);
            if (!WHOLE)
                a.to[row * a.cols + col + k] = out.half[k];
        }
        if (WHOLE) {
            uint4 *to = (uint4 *)(a.to + row * a.cols + col);

            to[0] = out.words[0];
            to[1] = out.words[1];
        }
    }
}

/* The bits of a NaN that this processor makes. */
static uint32_t new_nan(void)
{
    volatile float zero = 0, infinite = INFINITY; /* not when it is compiled */
    float x = zero * infinite;
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

uint64_t fp8_room(const struct fp8_matrix *m, uint64_t n)
{
    uint64_t bands = (n - 1) / m->block_rows + 2; /* the first may be cut */

    return round_up(n * m->cols, ALIGN) + bands * fp8_across(m) * sizeof(float);
}

int fp8_widen(struct cuda_context *c, const struct fp8_matrix *m,
              uint64_t first, uint64_t n, void *to, void *room, struct err *e)
{
    uint64_t across = fp8_across(m), all = n * m->cols;
    uint64_t band = first / m->block_rows;
    uint64_t bands = (first + n - 1) / m->block_rows + 1 - band;
    uint64_t blocks = (all / PIECE_CODES + n) / THREADS + 1;
    uint64_t most = (uint64_t)c->processors * 8;
    float *scale = (float *)((char *)room + round_up(all, ALIGN));
    struct widen_args a = {};
    int rc;

    if ((rc = upload(c, room, m->data + first * m->cols, all, e)) < 0 ||
        (rc = upload(c, scale, m->scale + band * across,
                     bands * across * sizeof(*scale), e)) < 0)
        return rc;
    a.to = (uint16_t *)to;
    a.codes = (const uint8_t *)room;
    a.scale = scale;
    a.rows = n;
    a.cols = m->cols;
    a.first = first;
    a.block_rows = m->block_rows;
    a.block_cols = m->block_cols;
    a.across = across;
    a.invalid = new_nan();
    a.e5m2 = m->dtype == DT_F8_E5M2;
    (m->cols % PIECE_CODES ?
         fp8_widen_kernel<false> :
         fp8_widen_kernel<true>)<<<(unsigned)(blocks < most ? blocks : most),
                                   THREADS, 0, c->stream>>>(a);
    LAUNCHED();
    return 0;
}

/* The codes lie behind the bf16 that are made of them. */
static int bring_fp8(struct cuda_context *c, const struct weight_rows *r,
                     struct err *e)
{
    uint64_t at = round_up(2 * r->n * r->cols, ALIGN);
    int rc = buffer_need(c, &c->weight, at + fp8_room(r->fp8, r->n), e);

    return rc < 0 ? rc :
                    fp8_widen(c, r->fp8, r->first, r->n, c->weight.data,
                              (char *)c->weight.data + at, e);
}

int bring_weight(struct cuda_context *c, const struct weight_rows *r,
                 struct err *e)
{
    uint64_t stride = r->cols * dtype_bits(r->dtype) / 8;
    int rc;

    if (r->fp8 && (r->dtype != DT_BF16 || r->fp8->cols != r->cols))
        return err_set(e, E_BUG, "8-bit floats that are no bf16 weights");
    if (r->fp8)
        return bring_fp8(c, r, e);
    rc = buffer_need(c, &c->weight, r->n * stride, e);
    return rc < 0 ?
               rc :
               upload(c, c->weight.data, (const char *)r->w + r->first * stride,
                      r->n * stride, e);
}
