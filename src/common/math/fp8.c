/* fp8.c - see fp8.h.
 *
 * A block has one scale, so at most 256 values: they are computed once as a
 * table, and elements are looked up.  With AVX-512 VBMI the bf16 table is in
 * four registers (128 values of two bytes; the sign is added separately), 64
 * elements per step; with NEON in sixteen registers, 16 elements per step.
 * bench/fp8_bench.c measures it. */
#include "common/math/fp8.h"

#include <string.h>

#include "common/math/cpu.h"
#include "common/math/threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { CODES = 256, PART = 1 << 16 }; /* PART: least elements of a thread */

struct job {
    const struct fp8_matrix *m;
    const float *value; /* [CODES] value of each code, without scale */
    uint16_t *half;     /* destination: one of the two */
    float *single;
};

/* ---- one row of one block ---- */

/* Convert as many elements of x[n] as fill vectors, by the low and high bytes
 * of the table; returns how many. */
#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512vbmi"))) static uint64_t
row_vbmi(uint16_t *out, const uint8_t *x, uint64_t n, const uint8_t *low,
         const uint8_t *high)
{
    const __m512i l0 = _mm512_loadu_si512(low);
    const __m512i l1 = _mm512_loadu_si512(low + 64);
    const __m512i h0 = _mm512_loadu_si512(high);
    const __m512i h1 = _mm512_loadu_si512(high + 64);
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    /* unpack interleaves within 128-bit lanes: permute the quarters before */
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    uint64_t i = 0;

    for (; i + 64 <= n; i += 64) {
        __m512i v = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(x + i));
        __m512i l = _mm512_permutex2var_epi8(l0, v, l1);
        __m512i h = _mm512_permutex2var_epi8(h0, v, h1);

        h = _mm512_xor_si512(h, _mm512_and_si512(v, sign));
        _mm512_storeu_si512(out + i, _mm512_unpacklo_epi8(l, h));
        _mm512_storeu_si512(out + i + 32, _mm512_unpackhi_epi8(l, h));
    }
    return i;
}

static uint64_t row_vector(uint16_t *out, const uint8_t *x, uint64_t n,
                           const uint8_t *low, const uint8_t *high)
{
    return cpu_uses_vbmi() ? row_vbmi(out, x, n, low, high) : 0;
}
#elif defined(__aarch64__)
static uint64_t row_vector(uint16_t *out, const uint8_t *x, uint64_t n,
                           const uint8_t *low, const uint8_t *high)
{
    const uint8x16x4_t l0 = vld1q_u8_x4(low), l1 = vld1q_u8_x4(low + 64);
    const uint8x16x4_t h0 = vld1q_u8_x4(high), h1 = vld1q_u8_x4(high + 64);
    const uint8x16_t sign = vdupq_n_u8(0x80), half = vdupq_n_u8(64);
    uint64_t i = 0;

    if (!cpu_uses(CPU_NEON))
        return 0;
    for (; i + 16 <= n; i += 16) {
        uint8x16_t v = vld1q_u8(x + i), at = vbicq_u8(v, sign);
        uint8x16_t next =
            vsubq_u8(at, half); /* tbx keeps what is out of range */
        uint8x16x2_t to;

        to.val[0] = vqtbx4q_u8(vqtbl4q_u8(l0, at), l1, next);
        to.val[1] = vqtbx4q_u8(vqtbl4q_u8(h0, at), h1, next);
        to.val[1] = veorq_u8(to.val[1], vandq_u8(v, sign));
        vst2q_u8((uint8_t *)(out + i), to);
    }
    return i;
}
#else
#define row_vector(out, x, n, low, high) ((void)(low), (void)(high), 0)
#endif

/* ---- one block ---- */

struct block {
    uint64_t row, rows, col, cols;
};

static void block_bf16(const struct job *j, const struct block *b,
                       const float *value)
{
    const struct fp8_matrix *m = j->m;
    uint8_t low[CODES / 2], high[CODES / 2];
    uint16_t table[CODES];

    if (!from_f32(table, DT_BF16, value, CODES / 2))
        return;
    for (int i = 0; i < CODES / 2; i++) {
        table[CODES / 2 + i] = table[i] ^ 0x8000;
        low[i] = (uint8_t)table[i];
        high[i] = (uint8_t)(table[i] >> 8);
    }
    for (uint64_t r = b->row; r < b->row + b->rows; r++) {
        const uint8_t *x = m->data + r * m->cols + b->col;
        uint16_t *out = j->half + r * m->cols + b->col;
        uint64_t i = row_vector(out, x, b->cols, low, high);

        for (; i < b->cols; i++)
            out[i] = table[x[i]];
    }
}

static void block_f32(const struct job *j, const struct block *b,
                      const float *value)
{
    const struct fp8_matrix *m = j->m;

    for (uint64_t r = b->row; r < b->row + b->rows; r++) {
        const uint8_t *x = m->data + r * m->cols + b->col;
        float *out = j->single + r * m->cols + b->col;

        for (uint64_t i = 0; i < b->cols; i++)
            out[i] = value[x[i]];
    }
}

/* ---- all of them ---- */

/* Rows begin..end-1, block by block. */
static void rows(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct fp8_matrix *m = j->m;
    uint64_t across = fp8_across(m);
    float value[CODES];

    for (uint64_t r = begin, next; r < end; r = next) {
        uint64_t band = r / m->block_rows;

        next =
            (band + 1) * m->block_rows < end ? (band + 1) * m->block_rows : end;
        for (uint64_t k = 0; k < across; k++) {
            uint64_t col = k * m->block_cols, left = m->cols - col;
            struct block b = { r, next - r, col,
                               left < m->block_cols ? left : m->block_cols };
            float s = m->scale[band * across + k];

            for (int i = 0; i < CODES; i++)
                value[i] = j->value[i] * s;
            (j->half ? block_bf16 : block_f32)(j, &b, value);
        }
    }
}

static void convert(struct job *j)
{
    float value[CODES];
    uint8_t code[CODES];

    if (!j->m->rows || !j->m->cols)
        return;
    for (int i = 0; i < CODES; i++)
        code[i] = (uint8_t)i;
    if (!to_f32(value, code, j->m->dtype, CODES))
        return;
    j->value = value;
    threads_for(j->m->rows, 1 + PART / j->m->cols, rows, j);
}

void fp8_to_bf16(uint16_t *out, const struct fp8_matrix *m)
{
    struct job j = { .m = m, .half = out };

    convert(&j);
}

void fp8_to_f32(float *out, const struct fp8_matrix *m)
{
    struct job j = { .m = m, .single = out };

    convert(&j);
}

void fp8_piece(float *out, const struct fp8_matrix *m, uint64_t row,
               uint64_t col, uint64_t n)
{
    const uint8_t *x = m->data + row * m->cols + col;
    const float *scale = m->scale + row / m->block_rows * fp8_across(m);

    if (!to_f32(out, x, m->dtype, n))
        return;
    for (uint64_t i = 0; i < n; i++)
        out[i] = f32_from_bf16(
            bf16_from_f32(out[i] * scale[(col + i) / m->block_cols]));
}

/* The largest of x[n] without signs: a code's |value| rises with it.  In lanes, of which
 * compilers make vectors. */
static uint8_t most_code(const uint8_t *x, uint64_t n, uint8_t most)
{
    enum { LANES = 64 };
    uint8_t lane[LANES] = { 0 };
    uint64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            uint8_t v = x[i + k] & 0x7f;

            lane[k] = v > lane[k] ? v : lane[k];
        }
    for (int k = 0; k < LANES; k++)
        most = lane[k] > most ? lane[k] : most;
    for (; i < n; i++)
        most = (x[i] & 0x7f) > most ? x[i] & 0x7f : most;
    return most;
}

float fp8_most(const struct fp8_matrix *m)
{
    uint64_t across = m->cols ? fp8_across(m) : 0;
    uint16_t most = 0;

    for (uint64_t r = 0; r < m->rows; r += m->block_rows)
        for (uint64_t k = 0; k < across; k++) {
            uint64_t col = k * m->block_cols, left = m->cols - col;
            uint64_t end = r + m->block_rows, n = m->block_cols;
            uint8_t code = 0;
            uint16_t bits;
            float w;

            for (uint64_t i = r; i < end && i < m->rows; i++)
                code = most_code(m->data + i * m->cols + col,
                                 left < n ? left : n, code);
            if (!to_f32(&w, &code, m->dtype, 1))
                return 0;
            w *= m->scale[r / m->block_rows * across + k];
            bits = bf16_from_f32(w) & 0x7fff;
            most = bits > most ? bits : most;
        }
    return f32_from_bf16(most);
}
