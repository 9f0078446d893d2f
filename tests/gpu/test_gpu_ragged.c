/* Hessians of many inputs in one launch against one at a time by cuBLAS, and
 * against sums in double; the same bytes when run again and in any company. */
#include "gpu.h"

#include "hessian/hessian_table.h"

enum { MOST = 9 };

static bool small; /* what a sanitizer gets through: without cuBLAS */

static void *tokens(uint64_t n, uint64_t cols)
{
    uint16_t *x = room(n * cols * 2 + 16);

    for (uint64_t i = 0; i < n * cols; i++)
        x[i] = bf16_from_f32(normal() * (i % cols % 50 ? 1 : 20));
    return x;
}

static float *alone(const struct cuda_tokens *t, uint64_t cols)
{
    struct hessian_shape s = { cols, 0, DT_BF16 };
    float *out = room(cols * (cols + 1) / 2 * 4);
    struct cuda_hessian *h;

    OK(hessian_functions()->open(&h, gpu, &s, e));
    OK(hessian_functions()->add(h, t->x, t->tokens, false, e));
    OK(hessian_functions()->finish(h, out, false, e));
    hessian_functions()->close(h);
    return out;
}

static double distance(const float *a, const float *b, uint64_t n)
{
    double wrong = 0, all = 0;

    for (uint64_t i = 0; i < n; i++) {
        CHECK(isfinite(a[i]));
        wrong += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(wrong / all);
}

/* Relative error of a sample of the elements. */
static double exact_distance(const struct cuda_tokens *t, uint64_t cols)
{
    const uint16_t *x = t->x;
    double wrong = 0, all = 0;

    for (int k = 0; k < 500; k++) {
        uint64_t i = rnd() % cols, j = k % 4 ? rnd() % (i + 1) : i;
        double sum = 0;

        for (uint64_t at = 0; at < t->tokens; at++)
            sum += (double)f32_from_bf16(x[at * cols + i]) *
                   (double)f32_from_bf16(x[at * cols + j]);
        sum *= 2 / (double)t->tokens;
        wrong += (t->h[i * (i + 1) / 2 + j] - sum) *
                 (t->h[i * (i + 1) / 2 + j] - sum);
        all += sum * sum;
    }
    return sqrt(wrong / all);
}

static void check_one(const struct cuda_tokens *t, uint64_t cols)
{
    uint64_t elements = cols * (cols + 1) / 2;
    double near = 0;

    if (!t->tokens) {
        for (uint64_t i = 0; i < elements; i++)
            CHECK(t->h[i] == 0);
        return;
    }
    if (!small) {
        float *want = alone(t, cols);

        near = distance(t->h, want, elements);
        free(want);
    }
    printf("  %llu tokens: %.2g from cuBLAS, %.2g from the sums in double\n",
           (unsigned long long)t->tokens, near, exact_distance(t, cols));
    CHECK(near < 1e-4);
    CHECK(exact_distance(t, cols) < 1e-4);
}

static void check(uint64_t cols, const uint64_t *counts, int n)
{
    uint64_t elements = cols * (cols + 1) / 2;
    struct cuda_tokens t[MOST], one;
    float *again = room(elements * 4);

    for (int i = 0; i < n; i++)
        t[i] = (struct cuda_tokens){ tokens(counts[i], cols), counts[i],
                                     room(elements * 4) };
    OK(hessian_functions()->batch(gpu, cols, t, n, e));
    printf("%d inputs of width %llu\n", n, (unsigned long long)cols);
    for (int i = 0; i < n; i++) {
        check_one(&t[i], cols);
        one = t[i];
        one.h = again;
        OK(hessian_functions()->batch(gpu, cols, &one, 1, e));
        CHECK(!memcmp(again, t[i].h, elements * 4));
    }
    for (int i = 0; i < n; i++) {
        free((void *)(uintptr_t)t[i].x);
        free(t[i].h);
    }
    free(again);
}

/* PLUG-IN SEED small */
int main(int argc, char **argv)
{
    static const uint64_t few[] = { 0, 1, 31, 32, 33, 257, 96, 1000, 128 };
    static const uint64_t many[] = { 700, 0, 20000, 3, 40000, 16384 };

    gpu_open(argc, argv, &hessian_plugin);
    small = argc > 3;
    check(8, few, 5);
    check(328, few, small ? 4 : 9);
    if (!small) {
        check(264, many, 6);
        check(2048, few, 9);
        check(1416, few, 9);
    }
    return 0;
}
