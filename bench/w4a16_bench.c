/* w4a16_bench - products with 4-bit linears as they lie in checkpoints, by all
 * threads: against sums in double first.
 *
 * One row: matrices that no cache holds take turns; GB/s of what the checkpoint
 * has of them, against reading those words and nothing else, round about, in the faster
 * of two ways: of the best round, and CPU seconds of all rounds, which other work
 * disturbs less.  Many rows: against the product with W in bf16, packed beforehand.
 * Experts: one grouped call against a call for each. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/math/bf16_gemm.h"
#include "peak.h"
#include "w4_matrix.h"

enum { ROUNDS = 5, PART = 1 << 20, AHEAD = 2048 };

static const char *const name[] = { "compressed-tensors", "awq", "gptq",
                                    "gptq_v2" };

/* The worst of some sums, in units of their size. */
static double check(const struct matrix *w, int layout, const uint16_t *x,
                    int64_t m, const float *y)
{
    double worst = 0;

    for (int64_t r = 0; r < m; r += 61)
        for (int64_t o = 0; o < w->o; o += 997) {
            double sum = 0, size = 0;

            for (int64_t k = 0; k < w->i; k++) {
                double v = value(w, layout, o, k), t;

                if (m > FORGE_W4A16_FEW)
                    v = (double)f32_from_bf16(bf16_from_f32((float)v));
                t = v * (double)f32_from_bf16(x[r * w->i + k]);
                sum += t;
                size += t * t;
            }
            worst =
                fmax(worst, fabs((double)y[r * w->o + o] - sum) / sqrt(size));
        }
    if (!(worst < (m > FORGE_W4A16_FEW ? 1e-5 : 2e-4))) /* x of 14 bits */
        die(E_BUG, "%s: error %g", name[layout], worst);
    return worst;
}

/* ---- one row ---- */

typedef uint64_t eight __attribute__((vector_size(64)));
struct reading {
    const struct matrix *m;
    size_t parts; /* of a matrix */
    /* four of a part at a time, as the CPU asks for them; else one, asked for ahead */
    bool streams;
    uint64_t x;
};

static void read_parts(void *ctx, size_t begin, size_t end)
{
    struct reading *j = ctx;
    eight a = { 0 }, b = a, c = a, d = a;

    for (size_t t = begin; t < end; t++) {
        size_t at = t % j->parts * PART;
        const eight *p =
            (const eight *)(const void
                                *)((const char *)j->m[t / j->parts].words + at);

        for (size_t i = 0, n = PART / 256; i < n && j->streams; i++) {
            a ^= p[i];
            b ^= p[i + n];
            c ^= p[i + 2 * n];
            d ^= p[i + 3 * n];
        }
        for (size_t i = 0; i < PART / 64 && !j->streams; i += 4) {
            for (size_t k = 0; k < 4; k++)
                __builtin_prefetch((const char *)(p + i + k) + AHEAD);
            a ^= p[i];
            b ^= p[i + 1];
            c ^= p[i + 2];
            d ^= p[i + 3];
        }
    }
    a ^= b ^ c ^ d;
    __atomic_fetch_xor(&j->x,
                       a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7],
                       __ATOMIC_RELAXED);
}

/* Bytes a second of the faster way; *used += its CPU time. */
static double read_rate(const struct matrix *m, size_t n, clock_t *used)
{
    struct reading j = { .m = m, .parts = (size_t)(m->o * m->i / 2) / PART };
    clock_t least = 0;
    double best = 0;

    for (int way = 0; way < 2; way++) {
        clock_t begin = clock();
        double t = seconds(), rate;

        j.streams = way;
        threads_for(n * j.parts, 1, read_parts, &j);
        rate = (double)(n * j.parts * PART) / (seconds() - t);
        if (rate > best) {
            best = rate;
            least = clock() - begin;
        }
    }
    *used += least;
    return best;
}

/* n matrices in turn, so many rows at once. */
static void one_row(int layout, int64_t o, int64_t i, size_t n)
{
    struct matrix *m = must(mem_zero(n, sizeof(*m), "bench", &err));
    uint16_t *x = rows_of(1, i);
    float *y = must(mem_pages((size_t)o * sizeof(*y), "bench", &err));
    double worst = 0, best = 0, reads = 0;
    clock_t reading = 0, multiplying = 0;

    for (size_t k = 0; k < n; k++) {
        fill(&m[k], (enum forge_w4a16_layout)layout, o, i);
        multiply(&m[k], x, 1, y);
        worst = fmax(worst, check(&m[k], layout, x, 1, y));
    }
    for (int round = 0; round < ROUNDS; round++) {
        double rate = read_rate(m, n, &reading), t = seconds(), share;
        clock_t begin = clock();

        for (size_t k = 0; k < n; k++)
            multiply(&m[k], x, 1, y);
        t = (seconds() - t) / (double)n;
        multiplying += clock() - begin;
        share = (double)m->stored / t / rate;
        if (share > best) {
            best = share;
            reads = rate;
        }
    }
    printf("w4a16 %-18s %-10s M = 1, %5lld x %5lld: error %.1e, %6.2f ms, "
           "%5.1f GB/s, "
           "%3.0f %% of reading's %.1f (CPU time of %d rounds %.0f %%)\n",
           name[layout], cpu_level_name(cpu_level()), (long long)i,
           (long long)o, worst, (double)m->stored / best / reads * 1e3,
           best * reads / 1e9, 100 * best, reads / 1e9, ROUNDS,
           100 * (double)m->stored / (double)(m->o * m->i / 2 / PART * PART) *
               (double)reading / (double)multiplying);
    for (size_t k = 0; k < n; k++)
        empty(&m[k]);
    free(m);
    free(x);
    free(y);
}

/* ---- many rows ---- */

static void dense_tiles(void *ctx, size_t begin, size_t end)
{
    const struct bf16_gemm *g = ctx;
    int64_t rows = bf16_kernel()->tile_rows, cols = bf16_kernel()->tile_cols;
    int64_t down = (g->m + rows - 1) / rows;

    for (size_t t = begin; t < end; t++) {
        int64_t r = (int64_t)t % down * rows, o = (int64_t)t / down * cols;
        struct bf16_gemm part = *g;

        part.x += r * g->ldx;
        part.m = g->m - r < rows ? g->m - r : rows;
        part.first = o;
        part.n = g->n - o < cols ? g->n - o : cols;
        part.y += r * g->ldy + o;
        bf16_gemm(&part);
    }
}

static uint16_t *dense(const struct matrix *m, int layout)
{
    int64_t group = bf16_gemm_group(), depth = bf16_gemm_depth(m->i);
    uint16_t *p =
        must(mem_pages(bf16_gemm_packed(m->o, m->i) * 2, "bench", &err));
    uint16_t *w = must(mem_pages((size_t)(m->o * m->i) * 2, "bench", &err));

    for (int64_t o = 0; o < m->o; o++)
        for (int64_t k = 0; k < m->i; k++)
            w[o * m->i + k] = bf16_from_f32((float)value(m, layout, o, k));
    for (int64_t o = 0; o < m->o; o += group) {
        int64_t n = m->o - o < group ? m->o - o : group;

        bf16_gemm_pack(p + o * depth, w + o * m->i, n, m->i, 0,
                       (n + GEMM_COLS - 1) / GEMM_COLS);
    }
    free(w);
    return p;
}

static void many_rows(int layout, int64_t o, int64_t i, int64_t rows)
{
    struct matrix m;
    uint16_t *x = rows_of(rows, i), *packed;
    size_t n = (size_t)(rows * o);
    float *y = must(mem_pages(n * sizeof(*y), "bench", &err));
    float *z = must(mem_pages(n * sizeof(*z), "bench", &err));
    double worst, best = 1e9, wide = 1e9, ratio = 0;
    struct bf16_gemm g;
    size_t tiles;

    fill(&m, (enum forge_w4a16_layout)layout, o, i);
    packed = dense(&m, layout);
    g = (struct bf16_gemm){ .x = x,
                            .ldx = i,
                            .m = rows,
                            .k = i,
                            .packed = packed,
                            .all = o,
                            .n = o,
                            .y = z,
                            .ldy = o };
    tiles = (size_t)((rows + bf16_kernel()->tile_rows - 1) /
                     bf16_kernel()->tile_rows *
                     ((o + bf16_kernel()->tile_cols - 1) /
                      bf16_kernel()->tile_cols));
    for (int round = 0; round < ROUNDS; round++) {
        double a = seconds(), b, c;

        multiply(&m, x, rows, y);
        b = seconds();
        threads_for(tiles, 1, dense_tiles, &g);
        c = seconds();
        best = fmin(best, b - a);
        wide = fmin(wide, c - b);
        ratio = fmax(ratio, (c - b) / (b - a));
    }
    worst = check(&m, layout, x, rows, y);
    if (rows > FORGE_W4A16_FEW && memcmp(y, z, n * sizeof(*y)))
        die(E_BUG, "not the product with W in bf16");
    printf("w4a16 %-18s %-10s M = %lld, %5lld x %5lld: error %.1e, %6.2f ms, "
           "%5.0f "
           "GFLOP/s a core, %3.0f %% of bf16's %.2f ms (best round %.0f %%)\n",
           name[layout], cpu_level_name(cpu_level()), (long long)rows,
           (long long)i, (long long)o, worst, best * 1e3,
           2e-9 * (double)rows * (double)o * (double)i / best / threads_count(),
           100 * wide / best, wide * 1e3, 100 * ratio);
    empty(&m);
    free(packed);
    free(x);
    free(y);
    free(z);
}

/* ---- experts ---- */

static void experts(int layout, int64_t rows)
{
    enum { EXPERTS = 64, O = 1024, I = 2048 };
    struct matrix m[EXPERTS];
    const struct forge_w4a16 *w[EXPERTS];
    int64_t first[EXPERTS + 1] = { 0 };
    uint16_t *x = rows_of(rows, I);
    float *y = must(mem_pages((size_t)(rows * O) * sizeof(*y), "bench", &err));
    float *z = must(mem_pages((size_t)(rows * O) * sizeof(*y), "bench", &err));
    const struct forge_w4a16_rows from = { FORGE_W4A16_BF16, x, I };
    const struct forge_w4a16_rows to = { FORGE_W4A16_F32, y, O };
    double together = 1e9, each = 1e9;
    char why[200];

    for (int64_t r = 0; r < rows; r++)
        first[1 + draw() % EXPERTS]++;
    for (int e = 0; e < EXPERTS; e++) {
        first[e + 1] += first[e];
        fill(&m[e], (enum forge_w4a16_layout)layout, O, I);
        w[e] = m[e].w;
    }
    for (int round = 0; round < ROUNDS; round++) {
        double a = seconds(), b;

        if (forge_w4a16_grouped(w, first, EXPERTS, &from, &to, why,
                                sizeof(why)) < 0)
            die(E_BUG, "%s", why);
        b = seconds();
        together = fmin(together, b - a);
        for (int e = 0; e < EXPERTS; e++)
            if (first[e + 1] > first[e])
                multiply(&m[e], x + first[e] * I, first[e + 1] - first[e],
                         z + first[e] * O);
        each = fmin(each, seconds() - b);
    }
    if (memcmp(y, z, (size_t)(rows * O) * sizeof(*y)))
        die(E_BUG, "experts together are not experts apart");
    printf(
        "w4a16 %-18s %-10s %lld rows of %d experts, %d x %d: %6.2f ms, a call "
        "for each %.2f ms: %.2fx\n",
        name[layout], cpu_level_name(cpu_level()), (long long)rows, EXPERTS, I,
        O, together * 1e3, each * 1e3, each / together);
    for (int e = 0; e < EXPERTS; e++)
        empty(&m[e]);
    free(x);
    free(y);
    free(z);
}

/* w4a16_bench [LEVEL [THREADS]] */
int main(int argc, char **argv)
{
    base_init(argv[0]);
    threads_set(argc > 2 ? atoi(argv[2]) : 0);
    for (int l = CPU_LEVELS - 1; l >= 0; l--) {
        enum cpu_level level = (enum cpu_level)l;
        bool first = l == CPU_LEVELS - 1 || !cpu_has(level + 1);

        if (!cpu_has(level) ||
            (argc > 1 && strcmp(argv[1], cpu_level_name(level))))
            continue;
        cpu_set(level);
        for (int k = 0; k <= FORGE_W4A16_GPTQ; k++) {
            if (level != CPU_AVX512BF16 || argc > 1) { /* as avx512 */
                one_row(k, 28672, 8192, 5);
                one_row(k, 11008, 4096, 9);
            }
            if (level != CPU_PLAIN || argc > 1) /* minutes */
                many_rows(k, 11008, 4096, 512);
            if (first || argc > 1)
                many_rows(k, 4096, 4096, 16);
            if (first || argc > 1)
                experts(k, 512);
        }
    }
    return 0;
}
