/* fp8 weights with block scales to bf16: every one of the 256 values, and
 * random ones of odd sizes, by the CPU's conversions. */
#include "gpu.h"

static void check(uint64_t rows, uint64_t cols, uint64_t block)
{
    uint64_t n = rows * cols, per = (cols + block - 1) / block;
    uint64_t scales = (rows + block - 1) / block * per;
    uint8_t *w = room(n);
    float *scale = room(scales * 4), *row = room(cols * 4);
    uint16_t *got = room(n * 2), *want = room(cols * 2);
    struct cuda_fp8 p = { rows, cols, block, w, scale, got };

    for (uint64_t i = 0; i < n; i++)
        w[i] = (uint8_t)(i < 256 ? i : rnd());
    for (uint64_t i = 0; i < scales; i++)
        scale[i] = 1e-4f * (0.1f + fabsf(normal()));
    OK(cuda->dequantize(gpu, &p, e));
    for (uint64_t r = 0; r < rows; r++) {
        CHECK(to_f32(row, w + r * cols, DT_F8_E4M3, cols));
        for (uint64_t i = 0; i < cols; i++)
            row[i] *= scale[r / block * per + i / block];
        CHECK(from_f32(want, DT_BF16, row, cols));
        for (uint64_t i = 0; i < cols; i++) {
            uint16_t g = got[r * cols + i], x = want[i];
            bool nan = (w[r * cols + i] & 127) == 127;

            if (nan ? (g & 0x7fff) <= 0x7f80 : g != x) {
                fprintf(stderr, "[%d, %d]: %02x: want %04x, got %04x\n", (int)r,
                        (int)i, w[r * cols + i], x, g);
                exit(1);
            }
        }
    }
    free(w);
    free(scale);
    free(row);
    free(got);
    free(want);
}

int main(int argc, char **argv)
{
    gpu_open(argc, argv);
    check(8, 256, 128);
    check(1, 8, 128);
    check(300, 1096, 128);
    check(131, 520, 64);
    check(10000, 7168, 128);
    printf("fp8 to bf16: equal\n");
    cuda->close(gpu);
    return 0;
}
