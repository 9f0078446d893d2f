/* The inner loop of refinement: every instruction set against the plain code,
 * and each move against the best of all codes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "gptq/solve/refine_kernel.h"
#include "gptq/solve/solve_kernel.h"
#include "test.h"

enum { C = FACTOR_PANEL, R = SOLVE_ROWS };

static uint64_t seed = 9;

static float noise(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(seed >> 32) / 2147483648.0f;
}

struct data {
    float acc[C * R], h[C * C], scale[R], zero[R], w[C * R], d[C * R];
    float moved[C * R], change[R];
    uint8_t codes[C * R];
    float top;
};

static void make(struct data *x, int top)
{
    x->top = (float)top;
    for (int r = 0; r < R; r++) {
        x->scale[r] = 0.1f * (r % 3 ? 1.0f : -1.0f);
        x->zero[r] = (float)(r * 37 % (top + 1));
    }
    memset(x->change, 0, sizeof(x->change));
    for (int i = 0; i < C * C; i++)
        x->h[i] = i % (C + 1) ? 0 : 0.5f + fabsf(noise());
    x->h[3 * C + 3] = 0; /* a dead input */
    for (int i = 0; i < C - 1; i++)
        x->h[i * C + i + 1] = x->h[(i + 1) * C + i] = 0.1f * noise();
    for (int i = 0; i < C * R; i++) {
        x->codes[i] = (uint8_t)(fabsf(noise()) * ((float)top + 0.99f));
        x->w[i] = noise();
        x->d[i] =
            x->w[i] - ((float)x->codes[i] - x->zero[i % R]) * x->scale[i % R];
        x->acc[i] = noise() / 4;
    }
}

static bool run(refine_fn *f, struct data *x)
{
    struct refine_panel p = { .acc = x->acc,
                              .h = x->h,
                              .scale = x->scale,
                              .zero = x->zero,
                              .top = x->top,
                              .w = x->w,
                              .d = x->d,
                              .codes = x->codes,
                              .moved = x->moved,
                              .change = x->change };

    return f(&p);
}

static void all_move_the_same(void)
{
    enum cpu_level level = cpu_level();
    refine_fn *f = refine_kernel_best(), *plain;

    cpu_set(CPU_PLAIN);
    plain = refine_kernel_best();
    cpu_set(level);
    for (int round = 0; round < 200; round++) {
        static struct data a, b;
        bool moved;

        make(&a, round % 2 ? 255 : 15);
        b = a;
        moved = run(plain, &a);
        CHECK(moved == !!memcmp(a.codes, b.codes, sizeof(a.codes)));
        CHECK(run(f, &b) == moved);
        CHECK(!memcmp(&b, &a, sizeof(a)));
    }
}

/* The first input knows nothing of the others: all codes can be tried. */
static void moves_are_best_of(int top)
{
    static struct data a, b;

    make(&a, top);
    b = a;
    (void)run(refine_kernel_best(), &a);
    for (int r = 0; r < R; r++) {
        double least = INFINITY;
        int best = -1;

        for (int code = 0; code <= top; code++) {
            double step = -((double)code - b.codes[r]) * b.scale[r];
            double loss = 2 * step * b.acc[r] + step * step * b.h[0];

            if (loss < least) {
                least = loss;
                best = code;
            }
        }
        CHECK(a.codes[r] == best);
        CHECK(a.codes[3 * R + r] == b.codes[3 * R + r]);
    }
}

static void moves_are_best(void)
{
    moves_are_best_of(quant_top(4));
    moves_are_best_of(quant_top(8));
}

/* d H dᵀ before and after, where acc holds d H: what change says. */
static void change_is_of_the_loss(void)
{
    static struct data a, b;

    make(&a, 15);
    b = a;
    (void)run(refine_kernel_best(), &a);
    for (int r = 0; r < R; r++) {
        double change = 0;

        for (int i = 0; i < C; i++) {
            double m = a.moved[i * R + r];

            change += 2 * m * b.acc[i * R + r];
            for (int j = 0; j < C; j++)
                change += m * a.h[i * C + j] * a.moved[j * R + r];
        }
        CHECK(change <= 0 &&
              fabs(change - a.change[r]) < 1e-5 * (fabs(change) + 0.1));
    }
}

int main(void)
{
    each_level(all_move_the_same);
    each_level(moves_are_best);
    each_level(change_is_of_the_loss);
    return 0;
}
