/* fp8_bench - 8-bit floats with 128 x 128 scales to bf16 and to f32, one
 * thread: checked against the formula first, then for the clock, beside
 * memcpy of as many bytes.  fp8_bench [ROWS COLS] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/fp8.h"
#include "peak.h"

enum { BLOCK = 128, ROUNDS = 7 };

static struct err err;

static void *must(void *p)
{
    if (!p)
        die_err(&err);
    return p;
}

static void check(const struct fp8_matrix *m, const uint16_t *half,
                  const float *single)
{
    uint64_t across = (m->cols + BLOCK - 1) / BLOCK;

    for (uint64_t i = 0; i < m->rows * m->cols; i++) {
        uint64_t r = i / m->cols, c = i % m->cols;
        float s = m->scale[r / BLOCK * across + c / BLOCK];
        float w = f32_from_f8_e4m3(m->data[i]) * s;

        if (isnan(w) ? !isnan(f32_from_bf16(half[i])) || !isnan(single[i]) :
                       half[i] != bf16_from_f32(w) || single[i] != w)
            die(E_BUG, "element %zu is wrong", (size_t)i);
    }
}

int main(int argc, char **argv)
{
    uint64_t rows = argc > 2 ? strtoull(argv[1], NULL, 10) : 2048;
    uint64_t cols = argc > 2 ? strtoull(argv[2], NULL, 10) : 7168;
    uint64_t n = rows * cols;
    uint64_t blocks = (rows / BLOCK + 1) * (cols / BLOCK + 1);
    double best[3] = { 1e9, 1e9, 1e9 };
    uint8_t *data = must(mem_pages(n, "bench", &err));
    float *scale = must(mem_alloc(blocks * sizeof(float), "bench", &err));
    uint16_t *half = must(mem_pages(2 * n, "bench", &err));
    float *single = must(mem_pages(4 * n, "bench", &err));
    uint64_t seed = 1;
    struct fp8_matrix m = { DT_F8_E4M3, data, rows, cols, scale, BLOCK, BLOCK };

    base_init(argv[0]);
    threads_set(1);
    for (uint64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        data[i] = (uint8_t)(seed >> 56);
    }
    for (uint64_t i = 0; i < blocks; i++)
        scale[i] = (float)(1 + i % 7) * 1e-4f;
    for (int k = 0; k < ROUNDS; k++) {
        double t[4];

        t[0] = seconds();
        fp8_to_bf16(half, &m);
        t[1] = seconds();
        fp8_to_f32(single, &m);
        t[2] = seconds();
        if (!k)
            check(&m, half, single);
        t[2] = k ? t[2] : seconds();
        memcpy(single, half, 2 * n);
        t[3] = seconds();
        for (int i = 0; i < 3; i++)
            if (k && t[i + 1] - t[i] < best[i])
                best[i] = t[i + 1] - t[i];
    }
    printf("fp8 to bf16: %.2f GB/s of output; to f32: %.2f GB/s; memcpy of "
           "bf16: %.2f GB/s\n",
           2e-9 * (double)n / best[0], 4e-9 * (double)n / best[1],
           2e-9 * (double)n / best[2]);
    return 0;
}
