/* The inner loops of grids and of the solver: every instruction set against the
 * plain code, the powers against libm, the factorization against H. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/lanes.h"
#include "common/math/quant.h"
#include "gptq/grid/grid_cost.h"
#include "gptq/solve/factor.h"
#include "gptq/solve/solve.h"
#include "gptq/solve/solve_kernel.h"
#include "test.h"

static uint64_t seed = 5;

static float noise(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(seed >> 32) / 2147483648.0f;
}

static double one_cost(const float *w, const float *c, float scale, float zero,
                       float norm, int i)
{
    float x = w[i] / scale, q = fminf(fmaxf(rintf(x), -zero), 15 - zero);

    return (double)c[i] * pow(fabs((double)x - q), norm);
}

static void costs_are_equal_bit_for_bit(void)
{
    grid_cost_fn *f[] = { grid_cost_best(), grid_cost_tame() };
    enum cpu_level level = cpu_level();
    grid_cost_fn *plain;
    float w[64], c[64];

    cpu_set(CPU_PLAIN);
    plain = grid_cost_best();
    cpu_set(level);
    for (int round = 0; round < 2000; round++) {
        struct grid_batch b = { .n = 1 + round % GRID_BATCH };
        float norm = round % 3 ? 2.4f : 2, zero = (float)(round % 16);
        double want[GRID_BATCH], got[GRID_BATCH], exact = 0;

        for (int i = 0; i < 64; i++) {
            w[i] = i % 9 ? noise() : 0;
            c[i] = fabsf(noise());
        }
        for (int k = 0; k < b.n; k++) {
            b.scale[k] = 0.01f + fabsf(noise()) / 4;
            b.lo[k] = -zero;
            b.hi[k] = 15 - zero;
        }
        plain(w, c, 64, &b, norm, want);
        for (int v = 0; v < 2; v++) {
            f[v](w, c, 64, &b, norm, got);
            CHECK(!memcmp(got, want, (size_t)b.n * sizeof(*got)));
        }
        for (int i = 0; i < 64; i++)
            exact += one_cost(w, c, b.scale[b.n - 1], zero, norm, i);
        CHECK(fabs(want[b.n - 1] / exact - 1) < 1e-5);
    }
}

/* Weights of every magnitude that is tame, scales at both ends. */
static void quotients_are_exact(void)
{
    grid_cost_fn *tame = grid_cost_tame(), *exact = grid_cost_best();
    float w[64] = { 0 };

    for (int round = 0; tame != exact && round < 200000; round++) {
        struct grid_batch b = { .n = GRID_BATCH };
        int at = round % 79 - 39;
        double want[GRID_BATCH], got[GRID_BATCH];

        for (int i = 0; i < 64; i++)
            w[i] = ldexpf(copysignf(1, noise()) * (1 + fabsf(noise())) / 2,
                          at + (int)(20 * noise()));
        CHECK(grid_range(w, 64).tame);
        for (int k = 0; k < b.n; k++) {
            b.scale[k] = ldexpf(1 + fabsf(noise()), at);
            b.lo[k] = -8;
            b.hi[k] = 7;
        }
        exact(w, NULL, 64, &b, 2, want);
        tame(w, NULL, 64, &b, 2, got);
        CHECK(!memcmp(got, want, sizeof(got)));
    }
    w[5] = 0x1p-61f;
    CHECK(!grid_range(w, 64).tame);
    w[5] = 0x1p61f;
    CHECK(!grid_range(w, 64).tame && grid_range(w, 64).hi == w[5]);
}

enum { DEPTH = 37, C = FACTOR_PANEL, R = SOLVE_ROWS };

static void products_agree(void)
{
    const struct solve_kernels *k = solve_kernels_best();
    static float d[DEPTH * R], l[DEPTH * C], acc[C * R];

    for (int i = 0; i < DEPTH * R; i++)
        d[i] = noise();
    for (int i = 0; i < DEPTH * C; i++)
        l[i] = noise();
    memset(acc, 0, sizeof(acc));
    k->product(acc, d, l, DEPTH);
    for (int i = 0; i < C * R; i++) {
        double want = 0;

        for (int t = 0; t < DEPTH; t++)
            want += (double)d[t * R + i % R] * l[t * C + i / R];
        CHECK(fabs(acc[i] - want) < 1e-5);
    }
}

static void nearest_is_the_code(void)
{
    const struct solve_kernels *k = solve_kernels_best();
    float w[R], d[R], scale[R], zero[R];
    uint8_t codes[R];

    for (int round = 0; round < 500; round++) {
        int top = quant_top(round % 2 ? 8 : 4);

        for (int i = 0; i < R; i++) {
            scale[i] = 0.01f + fabsf(noise());
            zero[i] = (float)((round + i) % (top + 1));
            w[i] = d[i] = i % 5 ? 9 * noise() : scale[i] * (float)(i - 20) / 2;
        }
        k->nearest(d, scale, zero, (float)top, codes);
        for (int i = 0; i < R; i++) {
            struct qgrid g = { scale[i], (int)zero[i], top };

            CHECK(codes[i] == quant_code(w[i], g));
            CHECK(d[i] == w[i] - quant_value(codes[i], g));
        }
    }
}

/* Columns of one panel, each with so many rows beside each other: those of the
 * factorization have 48, those of a target's triangle 8. */
static void panel_agrees(size_t ld)
{
    const struct solve_kernels *k = solve_kernels_best();
    static float d[DEPTH * R], l[DEPTH * R], acc[C * R], x[C * R];

    for (int i = 0; i < DEPTH * R; i++) {
        d[i] = noise();
        l[i] = noise();
    }
    for (size_t c = 0; c < C; c++)
        l[c * ld + c] = 2 + fabsf(noise());
    memset(acc, 0, sizeof(acc));
    k->subtract(acc, d, l, DEPTH, ld);
    memcpy(x, acc, sizeof(x));
    k->divide(x, l, ld);
    for (size_t i = 0; i < C * R; i++) {
        double want = 0, back = 0;

        for (size_t t = 0; t < DEPTH; t++)
            want -= (double)d[t * R + i % R] * l[t * ld + i / R];
        CHECK(fabs(acc[i] - want) < 1e-5);
        for (size_t t = 0; t <= i / R; t++)
            back += (double)x[t * R + i % R] * l[t * ld + i / R];
        CHECK(fabs(acc[i] - back) < 1e-5);
    }
    if (ld != C)
        return;
    memcpy(x, acc, sizeof(x));
    k->back(x, l);
    for (size_t i = 0; i < C * R; i++) {
        double there = 0;

        for (size_t t = i / R; t < C; t++)
            there += (double)x[t * R + i % R] * l[t * C + i / R];
        CHECK(fabs(acc[i] - there) < 1e-5);
    }
}

static void panels_agree(void)
{
    panel_agrees(R);
    panel_agrees(C);
}

static void lanes_transpose(void)
{
    static float a[LANES][LANES + 1], b[LANES][LANES + 3];
    static uint8_t h[LANES * LANES], g[LANES][LANES + 5];
    lanes_transpose_fn *transpose[] = { lanes_transpose_plain,
                                        lanes_transpose_best() };

    for (int i = 0; i < LANES * LANES; i++) {
        a[i / LANES][i % LANES] = noise();
        h[i] = (uint8_t)(i * 7 + i / 11);
    }
    for (int v = 0; v < 2; v++) {
        const float *from[LANES];
        float *to[LANES];

        for (int i = 0; i < LANES; i++) {
            from[i] = a[i];
            to[i] = b[i];
        }
        memset(b, 0, sizeof(b));
        transpose[v](to, from);
        for (int i = 0; i < LANES * LANES; i++)
            CHECK(b[i % LANES][i / LANES] == a[i / LANES][i % LANES]);
    }
    lanes_transpose_bytes(&g[0][0], sizeof(g[0]), h);
    for (int i = 0; i < LANES * LANES; i++)
        CHECK(g[i % LANES][i / LANES] == h[i]);
}

static void lanes_see_what_is_not_finite(void)
{
    float x[37];
    uint16_t b[37];

    for (int n = 1; n <= 37; n++)
        for (int bad = -1; bad < n; bad++) {
            for (int i = 0; i < n; i++)
                x[i] = i == bad ? (n % 2 ? NAN : -INFINITY) : noise() * 1e38f;
            CHECK(lanes_finite(x, (size_t)n) == (bad < 0));
            CHECK(from_f32(b, DT_BF16, x, (size_t)n));
            CHECK(lanes_finite_bf16(b, (size_t)n) == (bad < 0));
            CHECK(lanes_all_finite(x, DT_F32, (uint64_t)n) == (bad < 0));
            CHECK(lanes_all_finite(b, DT_BF16, (uint64_t)n) == (bad < 0));
        }
}

/* R Rᵀ of a packed factor is H + lambda I, in the order that was asked for. */
static void factor_multiplies_back(void)
{
    enum { N = 150 };
    static float h[N * (N + 1) / 2];
    struct factor *f;
    struct err e;

    for (int i = 0; i < N; i++)
        for (int j = 0; j <= i; j++)
            h[i * (i + 1) / 2 + j] = powf(0.8f, (float)(i - j)) *
                                     (1 + (float)(i * 7 % 11)) *
                                     (1 + (float)(j * 7 % 11));
    for (int order = ORDER_NATURAL; order <= ORDER_GROUP; order++) {
        struct factor_params p = { N, 0, 32, order, 0.01 };

        CHECK(factor_build(&f, &p, h, &e) == 0);
        for (int i = 0; i < N; i += 3)
            for (int j = 0; j <= i; j += 2) {
                uint32_t a = f->input[i], b = f->input[j], t = a > b ? a : b;
                double want = h[t * (t + 1) / 2 + (a < b ? a : b)], sum = 0;

                want += i == j ? f->lambda : 0;
                for (int k = 0; k <= j; k++) {
                    const float *panel =
                        f->panel + factor_panel_at(f->padded, k / C);

                    sum += (double)panel[(i - k / C * C) * C + k % C] *
                           panel[(j - k / C * C) * C + k % C];
                }
                CHECK(fabs(sum - want) < 1e-4 * 121);
            }
        for (int i = 1; order == ORDER_ACTIVATION && i < N; i++) {
            uint32_t a = f->input[i - 1], b = f->input[i];

            CHECK(h[a * (a + 3) / 2] <= h[b * (b + 3) / 2]);
        }
        factor_free(f);
    }
}

/* Every tile once, those in the sample first; of whole matrices and of parts. */
static void samples_come_first(void)
{
    enum { TILES = 100 };
    static const uint64_t whole[] = { 1, 16, 17, 33, 86, TILES };

    for (size_t i = 0; i < ARRAY_LEN(whole); i++)
        for (uint64_t first = 0; first < whole[i]; first += 7) {
            struct solve_params p = { .rows =
                                          (whole[i] - first) * SOLVE_ROWS - 5,
                                      .first = first * SOLVE_ROWS,
                                      .of = whole[i] * SOLVE_ROWS - 5 };
            uint64_t n = solve_compared_tiles(&p);
            bool seen[TILES] = { false };

            if (!first)
                p.of = 0;
            for (uint64_t t = 0; t < whole[i] - first; t++) {
                uint64_t tile = solve_tile_order(&p, t);

                CHECK(tile < whole[i] - first && !seen[tile]);
                CHECK(solve_compared(&p, tile * SOLVE_ROWS) == (t < n));
                seen[tile] = true;
            }
        }
}

int main(void)
{
    each_level(costs_are_equal_bit_for_bit);
    each_level(quotients_are_exact);
    each_level(products_agree);
    each_level(panels_agree);
    each_level(nearest_is_the_code);
    each_level(lanes_transpose);
    each_level(factor_multiplies_back);
    lanes_see_what_is_not_finite();
    samples_come_first();
    return 0;
}
