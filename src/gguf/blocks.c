/* blocks.c - see blocks.h. */
#include "gguf/blocks.h"

#include <math.h>
#include <string.h>

#include "common/math/threads.h"

uint64_t block_row(uint64_t r, uint64_t head)
{
    uint64_t i = head ? r % head : 0;

    return head ? r - i + i % 2 * (head / 2) + i / 2 : r;
}

bool block_min(uint16_t *m, uint16_t scale, int zero)
{
    *m = f16_from_f32((float)-zero * f32_from_f16(scale));
    return (*m & 0x7c00) != 0x7c00;
}

bool block_min_exact(uint16_t m, uint16_t scale, int zero)
{
    return f32_from_f16(m) == (float)-zero * f32_from_f16(scale);
}

struct job {
    uint8_t *out;
    enum gguf_type type;
    const struct block_codes *b;
    const float *w;
};

static void put_u16(uint8_t **out, uint16_t v)
{
    memcpy(*out, &v, sizeof(v));
    *out += sizeof(v);
}

static void code_rows(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct block_codes *b = j->b;
    uint64_t bytes = gguf_bytes(j->type, b->cols);

    for (size_t r = begin; r < end; r++) {
        uint64_t row = block_row(r, b->head);
        bool wide = j->type == GGUF_Q8_0;
        const uint8_t *in = b->codes + row * (wide ? b->cols : b->cols / 2);
        uint8_t *out = j->out + r * bytes;

        for (uint64_t k = 0; k < b->cols;
             k += GGUF_BLOCK, in += wide ? GGUF_BLOCK : GGUF_BLOCK / 2) {
            uint64_t g = row * b->groups + k / b->group;
            uint16_t m = 0;

            put_u16(&out, b->scales[g]);
            if (j->type == GGUF_Q4_1) {
                (void)block_min(&m, b->scales[g], b->zeros[g]);
                put_u16(&out, m);
            }
            for (int i = 0; wide && i < GGUF_BLOCK; i++)
                *out++ = in[i] ^ 0x80; /* less 128, as a signed byte */
            for (int i = 0; !wide && i < 8;
                 i++) { /* codes 2i, 2i + 1 and 16 behind */
                *out++ = (uint8_t)((in[i] & 15) | in[i + 8] << 4);
                *out++ = (uint8_t)(in[i] >> 4 | (in[i + 8] & 0xf0));
            }
        }
    }
}

void block_codes_pack(uint8_t *out, enum gguf_type t,
                      const struct block_codes *b)
{
    struct job j = { .out = out, .type = t, .b = b };

    threads_for(b->rows, 16, code_rows, &j);
}

static void q8_blocks(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;

    for (size_t n = begin; n < end; n++) {
        const float *w = j->w + n * GGUF_BLOCK;
        uint8_t *out = j->out + n * 34;
        float most = 0, d, per;

        for (int i = 0; i < GGUF_BLOCK; i++)
            most = fabsf(w[i]) > most ? fabsf(w[i]) : most;
        d = most / 127;
        per = d > 0 ? 1 / d : 0;
        put_u16(&out, f16_from_f32(d));
        for (int i = 0; i < GGUF_BLOCK; i++)
            out[i] = (uint8_t)(int8_t)roundf(w[i] * per);
    }
}

void block_q8_0(uint8_t *out, const float *w, uint64_t n)
{
    struct job j = { .out = out, .w = w };

    threads_for(n / GGUF_BLOCK, 512, q8_blocks, &j);
}
