/* Hessians of many inputs in one launch against one at a time by cuBLAS, and
 * against sums in double; the same bytes when run again, in any company, and with
 * tokens and results on the device.  Sums of whole numbers, which are exact in any
 * order.  Blending, to the bit.
 *
 * PLUG-IN SEED tiles: only whole numbers, in many sizes; a failure says in which
 * tiles, and goes on. */
#include "gpu.h"

#include "hessian/hessian_table.h"

enum { MOST = 9, GUARD = 256 /* bytes behind a result */ };

/* The tiles of Hopper's kernel, for messages. */
enum { TILE_I = 128, TILE_J = 256, GROUP = 64, WARP = 16, PANEL = 64 };

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
    char *poison = room(n + GUARD), *again = room(n + GUARD);
    void *x, *h;

    OK(device->block(gpu, &x, t->tokens * cols * 2 + 16, e));
    OK(device->block(gpu, &h, n + GUARD, e));
    OK(hessian_functions()->put(gpu, x, t->x, t->tokens * cols * 2, e));
    OK(hessian_functions()->put(gpu, h, poison, n + GUARD, e));
    there.x = x;
    there.h = h;
    OK(hessian_functions()->batch(gpu, cols, &there, 1, e));
    OK(device->settle(gpu, e));
    OK(device->fetch(gpu, again, h, n + GUARD, e));
    CHECK(!memcmp(again, t->h, n));
    CHECK(!memcmp(again + n, poison + n, GUARD));
    device->drop(gpu, x);
    device->drop(gpu, h);
    free(poison);
    free(again);
}

/* ---- whole numbers ---- */

/* Sums over tokens of x_i x_j, packed, of whole numbers in bf16. */
static int32_t *whole_sums(const uint16_t *x, uint64_t tokens, uint64_t cols)
{
    int32_t *sum = room(cols * (cols + 1) / 2 * 4), *v = room(cols * 4), *to;

    memset(sum, 0, cols * (cols + 1) / 2 * 4);
    for (uint64_t t = 0; t < tokens; t++) {
        for (uint64_t i = 0; i < cols; i++)
            v[i] = (int32_t)f32_from_bf16(x[t * cols + i]);
        to = sum;
        for (uint64_t i = 0; i < cols; to += ++i)
            for (uint64_t j = 0; j <= i; j++)
                to[j] += v[i] * v[j];
    }
    free(v);
    return sum;
}

/* Where (i, j) is in a tile, what is there, and what should be. */
static void say_place(uint64_t i, uint64_t j, double got, int32_t want)
{
    printf("    (%llu, %llu): tile (%llu, %llu), group %llu, warp %llu, panel "
           "%llu: sum %.9g, want %d\n",
           (unsigned long long)i, (unsigned long long)j,
           (unsigned long long)(i / TILE_I), (unsigned long long)(j / TILE_J),
           (unsigned long long)(i % TILE_I / GROUP),
           (unsigned long long)(i % GROUP / WARP),
           (unsigned long long)(j % TILE_J / PANEL), got, want);
}

/* How many elements of h are wrong; the first few, and in which tiles. */
static uint64_t wrong_tiles(const float *h, const int32_t *want, uint64_t cols,
                            uint64_t tokens)
{
    uint64_t across = (cols + TILE_J - 1) / TILE_J, all = 0, shown = 0;
    uint64_t tiles = (cols + TILE_I - 1) / TILE_I * across;
    uint64_t *wrong = room(tiles * sizeof(*wrong));

    memset(wrong, 0, tiles * sizeof(*wrong));
    for (uint64_t i = 0, k = 0; i < cols; i++)
        for (uint64_t j = 0; j <= i; j++, k++) {
            double got = (double)h[k] * (double)tokens / 2;
            uint64_t *tile = &wrong[i / TILE_I * across + j / TILE_J];

            if (fabs(got - want[k]) < 0.25)
                continue;
            if ((*tile)++ < 4 && shown++ < 24)
                say_place(i, j, got, want[k]);
        }
    for (uint64_t k = 0; k < tiles; k++) {
        if (wrong[k])
            printf("    tile (%llu, %llu): %llu wrong\n",
                   (unsigned long long)(k / across),
                   (unsigned long long)(k % across),
                   (unsigned long long)wrong[k]);
        all += wrong[k];
    }
    free(wrong);
    return all;
}

/* The H of one input of whole numbers from -2 to 2, or x[t][i] = t % 64 == i % 64, so
 * that H shows which column is read for which.  Returns how many elements are
 * wrong. */
static uint64_t whole(uint64_t cols, uint64_t n, bool eye)
{
    uint64_t elements = cols * (cols + 1) / 2, wrong;
    uint16_t *x = room(n * cols * 2 + 16);
    struct cuda_tokens t = { .x = x, .tokens = n, .h = room(elements * 4) };
    int32_t *want;

    for (uint64_t i = 0; i < n * cols; i++)
        x[i] = bf16_from_f32(eye ? (float)(i / cols % 64 == i % cols % 64) :
                                   (float)(rnd() % 5) - 2);
    want = whole_sums(x, n, cols);
    OK(hessian_functions()->batch(gpu, cols, &t, 1, e));
    wrong = wrong_tiles(t.h, want, cols, n);
    printf("%s, %llu tokens of width %llu: %llu of %llu wrong\n",
           eye ? "unit vectors" : "whole numbers", (unsigned long long)n,
           (unsigned long long)cols, (unsigned long long)wrong,
           (unsigned long long)elements);
    fflush(stdout);
    free(x);
    free(t.h);
    free(want);
    return wrong;
}

/* All sizes, smallest first.  Returns the test's exit status. */
static int whole_in_tiles(void)
{
    static const uint64_t widths[] = {
        64, 128, 256, 8, 264, 384, 520, 776, 1032
    };
    static const uint64_t counts[] = { 64,  16,  1,   63,   65,  128,
                                       256, 257, 320, 1000, 2049 };
    uint64_t wrong = 0;

    for (size_t i = 0; i < ARRAY_LEN(widths); i++) {
        wrong += whole(widths[i], 64, true);
        for (size_t k = 0; k < ARRAY_LEN(counts); k++)
            wrong += whole(widths[i], counts[k], false);
    }
    wrong += whole(264, 16384, false);
    wrong += whole(264, 16385, false);
    wrong += whole(392, 40000, false);
    wrong += whole(2048, 300, false);
    printf("%llu wrong in all\n", (unsigned long long)wrong);
    return wrong > 0;
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
    struct cuda_tokens t[MOST], one, twice[MOST];

    for (int i = 0; i < n; i++) {
        t[i] = (struct cuda_tokens){ .x = tokens(counts[i], cols),
                                     .tokens = counts[i],
                                     .h = room(elements * 4) };
        twice[i] = t[i];
        twice[i].h = room(elements * 4);
    }
    OK(hessian_functions()->batch(gpu, cols, t, n, e));
    OK(hessian_functions()->batch(gpu, cols, twice, n, e));
    printf("%d inputs of width %llu\n", n, (unsigned long long)cols);
    for (int i = 0; i < n; i++) {
        check_one(&t[i], cols);
        CHECK(!memcmp(twice[i].h, t[i].h, elements * 4));
        free(twice[i].h);
        one = t[i];
        one.h = room(elements * 4);
        OK(hessian_functions()->batch(gpu, cols, &one, 1, e));
        CHECK(!memcmp(one.h, t[i].h, elements * 4));
        free(one.h);
        check_there(&t[i], cols);
    }
    for (int i = 0; i < n; i++) {
        free((void *)(uintptr_t)t[i].x);
        free(t[i].h);
    }
}

/* PLUG-IN SEED small */
int main(int argc, char **argv)
{
    static const uint64_t few[] = { 0, 1, 63, 64, 65, 257, 96, 1000, 128 };
    static const uint64_t many[] = {
        700, 0, 20000, 3, 40000, 16384, 65, 16385
    };

    gpu_open(argc, argv, &hessian_plugin);
    if (argc > 3 && !strcmp(argv[3], "tiles"))
        return whole_in_tiles();
    small = argc > 3;
    check_blend(1);
    check_blend(333);
    CHECK(!whole(264, 65, false));
    CHECK(!whole(520, 300, false));
    check(8, few, 5);
    check(328, few, small ? 4 : 9);
    if (!small) {
        CHECK(!whole(264, 40000, false));
        check(264, many, 8);
        check(2048, few, 9);
        check(1416, few, 9);
    }
    return 0;
}
