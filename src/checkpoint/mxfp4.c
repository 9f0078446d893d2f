/* mxfp4.c - see mxfp4.h. */
#include "checkpoint/mxfp4.h"

#include <math.h>

#include "common/math/threads.h"

struct job {
    void *to;
    enum dtype want;
    const uint8_t *code, *scale;
};

static void decode_groups(void *ctx, size_t begin, size_t end)
{
    static const float value[16] = { 0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                     4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                     -2.0f, -3.0f, -4.0f, -6.0f };
    const struct job *j = ctx;

    for (size_t g = begin; g < end; g++) {
        float by = ldexpf(1, j->scale[g] - 127);

        for (size_t i = 0; i < MXFP4_GROUP; i++) {
            int code = j->code[g * MXFP4_BYTES + i / 2] >> i % 2 * 4 & 15;
            float x = value[code] * by;

            if (j->want == DT_BF16)
                ((uint16_t *)j->to)[g * MXFP4_GROUP + i] = bf16_from_f32(x);
            else
                ((float *)j->to)[g * MXFP4_GROUP + i] = x;
        }
    }
}

void mxfp4_decode(void *to, enum dtype want, const uint8_t *code,
                  const uint8_t *scale, uint64_t n)
{
    struct job j = { to, want, code, scale };

    threads_for(n, 4096, decode_groups, &j);
}
