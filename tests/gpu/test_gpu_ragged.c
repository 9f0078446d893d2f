/* Hessians of many inputs in one launch against one at a time by cuBLAS, and
 * against sums in double; the same bytes when run again, in any company, and with
 * tokens and results on the device.  Blending, to the bit. */
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
    OK(hessian_functions()->add(h, t->x, t->tokens, false, NULL, e));
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

/* The same bytes where tokens and results are on the device. */
static void check_there(const struct cuda_tokens *t, uint64_t cols)
{
    uint64_t n = cols * (cols + 1) / 2 * sizeof(float);
    struct cuda_tokens there = { .tokens = t->tokens,
                                 .x_there = true,
                                 .h_there = true };
    float *again = room(n);
    void *x, *h;

    OK(device->block(gpu, &x, t->tokens * cols * 2 + 16, e));
    OK(device->block(gpu, &h, n, e));
    OK(hessian_functions()->put(gpu, x, t->x, t->tokens * cols * 2, e));
    there.x = x;
    there.h = h;
    OK(hessian_functions()->batch(gpu, cols, &there, 1, e));
    OK(device->settle(gpu, e));
    OK(device->fetch(gpu, again, h, n, e));
    CHECK(!memcmp(again, t->h, n));
    device->drop(gpu, x);
    device->drop(gpu, h);
    free(again);
}

/* hessian_table.blend against the formulas of blend.h, to the bit. */
static void check_blend(uint64_t cols)
{
    uint64_t n = cols * (cols + 1) / 2;
    float *h = room(n * 4), *prior = room(n * 4), *got = room(n * 4);
    const double own = uniform();
    const float add = normal();
    void *a, *b;

    for (uint64_t i = 0; i < n; i++) {
        h[i] = normal() * expf(3 * normal());
        prior[i] = normal();
    }
    OK(device->block(gpu, &a, n * 4, e));
    OK(device->block(gpu, &b, n * 4, e));
    OK(hessian_functions()->put(gpu, b, prior, n * 4, e));
    for (int layer = 0; layer < 2; layer++) {
        OK(hessian_functions()->put(gpu, a, h, n * 4, e));
        OK(hessian_functions()->blend(gpu, a, layer ? b : NULL, cols, own, add,
                                      e));
        OK(device->settle(gpu, e));
        OK(device->fetch(gpu, got, a, n * 4, e));
        for (uint64_t i = 0, r = 0; i < n; i++) {
            bool diagonal = i == r * (r + 3) / 2;
            float want =
                (float)(layer ? own * h[i] + (1 - own) * prior[i] : own * h[i]);

            if (!layer && diagonal)
                want += add;
            r += diagonal;
            CHECK(!memcmp(&want, &got[i], 4));
        }
    }
    device->drop(gpu, a);
    device->drop(gpu, b);
    free(h);
    free(prior);
    free(got);
}

static void check(uint64_t cols, const uint64_t *counts, int n)
{
    uint64_t elements = cols * (cols + 1) / 2;
    struct cuda_tokens t[MOST], one;
    float *again = room(elements * 4);

    for (int i = 0; i < n; i++)
        t[i] = (struct cuda_tokens){ .x = tokens(counts[i], cols),
                                     .tokens = counts[i],
                                     .h = room(elements * 4) };
    OK(hessian_functions()->batch(gpu, cols, t, n, e));
    printf("%d inputs of width %llu\n", n, (unsigned long long)cols);
    for (int i = 0; i < n; i++) {
        check_one(&t[i], cols);
        one = t[i];
        one.h = again;
        OK(hessian_functions()->batch(gpu, cols, &one, 1, e));
        CHECK(!memcmp(again, t[i].h, elements * 4));
        check_there(&t[i], cols);
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
    check_blend(1);
    check_blend(333);
    check(8, few, 5);
    check(328, few, small ? 4 : 9);
    if (!small) {
        check(264, many, 6);
        check(2048, few, 9);
        check(1416, few, 9);
    }
    return 0;
}
