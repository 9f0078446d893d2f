/* cuda_experts.c - the 256 experts of one layer of DeepSeek-V3, Hessians given:
 * factor, grid, solve and pack, from RAM to RAM, through the plug-in's table.
 *
 *     cuda_experts PLUG-IN [EXPERTS [LANES [BATCH]]]
 *
 * Each expert has gate and up [2048, 7168], which share a Hessian, and down
 * [7168, 2048].  SLOTS different ones lie in pinned memory, random, and are
 * taken in turns; each lane is a thread with a context of its own, so that one
 * copies while the other computes.  First a lane alone, whose parts are not
 * disturbed, then all; then some rows of one expert against the CPU. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/math/quant.h"
#include "cuda/forge_cuda.h"
#include "device/plugin.h"

enum {
    WIDE = 7168,
    NARROW = 2048,
    GROUP = 128,
    SLOTS = 16,
    TOKENS = 7680, /* that the Hessians come from */
    LANES_MAX = 8,
    ROWS_CHECKED = 64
};

/* One kind of linear: its input's size, its output's, and how many share H. */
struct kind {
    uint64_t rows, cols;
    int sets;
    struct cuda_matrix h[SLOTS];
    struct cuda_linear linear[SLOTS];
    struct factor *plan[SLOTS];
};

static struct kind gate_up = { .rows = NARROW, .cols = WIDE, .sets = 2 };
static struct kind down = { .rows = WIDE, .cols = NARROW, .sets = 1 };
static const struct forge_cuda *cuda;
static int experts = 256, lanes = 6, batch = 8;
static struct err why;

static void must(int rc, const char *what)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "cuda_experts: %s: %s\n", what, why.msg);
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *pinned(size_t n)
{
    void *p;

    must(cuda->host_alloc(&p, n, &why), "pinned memory");
    memset(p, 0xa5, n);
    return p;
}

/* ---- inputs ---- */

static uint16_t *pool;
enum { POOL = TOKENS * WIDE + (1 << 22) };

/* Sums of four bytes: nearly normal, exact in bf16 after scaling. */
static void *fill_pool(void *ctx)
{
    size_t part = (size_t)ctx, n = POOL / 16;
    uint64_t x = part * 0x9e3779b97f4a7c15 + (uint64_t)time(NULL) + 1;

    for (size_t i = part * n; i < (part + 1) * n; i++) {
        union {
            float f;
            uint32_t u;
        } v;
        uint64_t y;

        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        y = x * 0x2545f4914f6cdd1d;
        v.f = (float)((y & 255) + (y >> 8 & 255) + (y >> 16 & 255) +
                      (y >> 24 & 255)) -
              510;
        v.f *= 0x1p-7f;
        pool[i] = (uint16_t)(v.u >> 16);
    }
    return NULL;
}

static void make_pool(void)
{
    pthread_t t[16];

    pool = pinned((size_t)POOL * 2);
    for (size_t i = 0; i < 16; i++)
        pthread_create(&t[i], NULL, fill_pool, (void *)i);
    for (size_t i = 0; i < 16; i++)
        pthread_join(t[i], NULL);
}

static void make_slot(struct cuda_context *c, struct kind *k, int i)
{
    const struct hessian_shape s = { k->cols, 0, DT_BF16 };
    const struct factor_params fp = { .cols = k->cols,
                                      .group = GROUP,
                                      .order = ORDER_ACTIVATION,
                                      .damping = 0.01 };
    size_t n = k->cols * (k->cols + 1) / 2;
    float *h = pinned(n * sizeof(*h));
    struct cuda_hessian *acc;

    must(cuda->hessian_open(&acc, c, &s, &why), "hessian");
    must(cuda->hessian_add(acc, pool + 999983 * (i % 4) + 7 * i,
                           TOKENS * k->cols / WIDE, &why),
         "hessian");
    must(cuda->hessian_finish(acc, h, &why), "hessian");
    cuda->hessian_close(acc);
    must(factor_plan(&k->plan[i], &fp, h, &why), "plan");
    k->h[i] = (struct cuda_matrix){ .h = h,
                                    .input = k->plan[i]->input,
                                    .dead = k->plan[i]->dead,
                                    .mean = k->plan[i]->mean,
                                    .damping = fp.damping };
    for (int s1 = 0; s1 < k->sets; s1++) {
        uint16_t *w = pinned(k->rows * k->cols * 2);
        size_t at = (size_t)(i * 2 + s1) * 1048583;

        memcpy(w, pool + at, k->rows * k->cols * 2);
        k->linear[i].set[s1].w = w;
        k->linear[i].set[s1].meta = pinned(k->rows * k->cols / GROUP * 4);
        k->linear[i].set[s1].out = pinned(k->rows * k->cols / 2);
    }
}

static struct cuda_quantize plan_of(const struct kind *k, enum layout l, int n)
{
    return (struct cuda_quantize){ .grid = { .rows = k->rows,
                                             .cols = k->cols,
                                             .group = GROUP,
                                             .symmetric = true,
                                             .search = GRID_LP,
                                             .norm = 2.4,
                                             .candidates = 100,
                                             .scale_dtype = DT_F16,
                                             .dtype = DT_BF16 },
                                   .layout = l,
                                   .sets = k->sets,
                                   .batch = n };
}

/* ---- the run ---- */

struct lane {
    struct cuda_context *c;
    int number, of, first, experts;
    double part[CUDA_PARTS];
    pthread_t thread;
};

static void quantize(struct cuda_context *c, struct kind *k, enum layout l,
                     int at, int n)
{
    struct cuda_quantize p = plan_of(k, l, n);
    struct cuda_matrix h[SLOTS]; /* of this lane */
    struct cuda_linear linear[SLOTS];
    struct err e;
    int rc;

    memcpy(h, k->h + at, (size_t)n * sizeof(*h));
    memcpy(linear, k->linear + at, (size_t)n * sizeof(*linear));
    rc = cuda->quantize(c, &p, h, linear, n, &e);
    if (rc < 0)
        why = e;
    must(rc, "quantize");
}

static void *run_lane(void *ctx)
{
    struct lane *l = ctx;

    for (int e = l->number * batch; e < l->experts; e += l->of * batch) {
        int n = l->experts - e < batch ? l->experts - e : batch;
        int at = (e / batch * batch) % SLOTS;

        quantize(l->c, &gate_up, LAYOUT_AWQ, at, n);
        quantize(l->c, &down, LAYOUT_AWQ, at, n);
    }
    must(cuda->parts(l->c, l->part, &why), "parts");
    return NULL;
}

static double run(struct lane *l, int of, int count, double part[CUDA_PARTS])
{
    double start;

    memset(part, 0, CUDA_PARTS * sizeof(*part));
    for (int i = 0; i < of; i++) {
        l[i].number = i;
        l[i].of = of;
        l[i].experts = count;
        must(cuda->parts(l[i].c, l[i].part, &why), "parts");
    }
    start = now();
    for (int i = 0; i < of; i++)
        pthread_create(&l[i].thread, NULL, run_lane, &l[i]);
    for (int i = 0; i < of; i++)
        pthread_join(l[i].thread, NULL);
    start = now() - start;
    for (int i = 0; i < of; i++)
        for (int k = 0; k < CUDA_PARTS; k++)
            part[k] += l[i].part[k];
    return start;
}

static void say(const char *what, double wall, const double *part, double scale)
{
    printf("%s: %.2f s; transfer %.2f, factor %.2f, grid %.2f, solve %.2f, "
           "pack %.2f, waiting for the host %.2f\n",
           what, wall * scale, part[CUDA_TRANSFER] * scale,
           part[CUDA_FACTOR] * scale, part[CUDA_GRID] * scale,
           part[CUDA_SOLVE] * scale, part[CUDA_PACK] * scale,
           part[CUDA_WAITING] * scale);
}

/* ---- against the CPU ---- */

static float bf16_value(uint16_t b)
{
    union {
        uint32_t u;
        float f;
    } v = { .u = (uint32_t)b << 16 };

    return v.f;
}

/* (w-q) H (w-q)' of a row of WIDE inputs or fewer, in double. */
static double row_loss(const float *h, const uint16_t *w, const uint8_t *packed,
                       const uint32_t *meta, uint64_t cols)
{
    static uint8_t code[WIDE];
    static float q[WIDE];
    static double off[WIDE];
    double sum = 0;

    quant_unpack_row(code, packed, cols);
    quant_dequantize_row(q, code, cols, meta, GROUP, DT_F16);
    for (uint64_t i = 0; i < cols; i++) {
        double part = 0;

        off[i] = (double)bf16_value(w[i]) - (double)q[i];
        for (uint64_t j = 0; j < i; j++)
            part += (double)h[j] * off[j];
        sum += off[i] * (2 * part + (double)h[i] * off[i]);
        h += i + 1;
    }
    return sum;
}

/* A weight that lies between two codes may take the other one, and then the
 * rest of its row follows: rows that differ are counted, and what they lose is
 * compared, as a part of the CPU's loss on all rows.  Ends the program where
 * the two are further apart than ties explain. */
static void compare(const struct kind *k, const char *name,
                    const uint8_t *codes, const uint32_t *meta, double loss)
{
    const uint16_t *w = k->linear[0].set[0].w;
    const uint8_t *got = (const uint8_t *)k->linear[0].set[0].out;
    size_t row = k->cols / 2, differ = 0, groups = k->cols / GROUP;
    double off = 0;
    int rows = 0;

    for (size_t r = 0; r < ROWS_CHECKED; r++) {
        const uint8_t *a = codes + r * row, *b = got + r * row;

        if (!memcmp(a, b, row))
            continue;
        rows++;
        for (size_t i = 0; i < row; i++)
            differ += ((a[i] ^ b[i]) & 15) != 0, differ += (a[i] ^ b[i]) > 15;
        off +=
            row_loss(k->h[0].h, w + r * k->cols, b, meta + r * groups,
                     k->cols) -
            row_loss(k->h[0].h, w + r * k->cols, a, meta + r * groups, k->cols);
    }
    off /= loss;
    printf("check, %s, %d rows: grids equal the CPU's; %zu codes of %zu "
           "differ, in %d rows; loss %+.1e of the CPU's\n",
           name, ROWS_CHECKED, differ, 2 * row * ROWS_CHECKED, rows, off);
    if (rows > ROWS_CHECKED / 2 || fabs(off) > 2e-3)
        exit(1);
}

static void check(struct cuda_context *c, struct kind *k, const char *name)
{
    const struct factor_params fp = { .cols = k->cols,
                                      .group = GROUP,
                                      .order = ORDER_ACTIVATION,
                                      .damping = 0.01 };
    struct cuda_quantize q = plan_of(k, LAYOUT_CT, 1);
    struct solve_params p = { .rows = ROWS_CHECKED,
                              .cols = k->cols,
                              .group = GROUP,
                              .dtype = DT_BF16,
                              .scale_dtype = DT_F16 };
    size_t metas = ROWS_CHECKED * k->cols / GROUP, bytes = p.rows * p.cols / 2;
    uint32_t *meta = malloc(metas * 4);
    uint8_t *codes = malloc(bytes);
    struct solve_result r;
    struct factor *f;

    quantize(c, k, LAYOUT_CT, 0, 1);
    q.grid.rows = ROWS_CHECKED;
    must(grid_cpu.search(&q.grid, k->linear[0].set[0].w, meta, &why), "grid");
    must(factor_build(&f, &fp, k->h[0].h, &why), "factor");
    must(solve_cpu.run(&p, k->linear[0].set[0].w, meta, f, codes, &r, &why),
         "solve");
    if (memcmp(meta, k->linear[0].set[0].meta, metas * 4)) {
        printf("check, %s: grids differ from the CPU's\n", name);
        exit(1);
    }
    compare(k, name, codes, meta, r.loss);
    factor_free(f);
    free(meta);
    free(codes);
}

int main(int argc, char **argv)
{
    struct lane l[LANES_MAX] = { 0 };
    double part[CUDA_PARTS], wall, start = now();
    uint64_t most = 0;

    experts = argc > 2 ? atoi(argv[2]) : experts;
    lanes = argc > 3 ? atoi(argv[3]) : lanes;
    batch = argc > 4 ? atoi(argv[4]) : batch;
    if (argc < 2 || lanes < 1 || lanes > LANES_MAX || batch < 1 ||
        SLOTS % batch)
        return 64;
    must(plugin_open_file(&cuda, argv[1], &why), "plug-in");
    for (int i = 0; i < lanes; i++)
        must(cuda->open(&l[i].c, 0, 0, &why), "open");
    make_pool();
    for (int i = 0; i < SLOTS; i++) {
        make_slot(l[0].c, &gate_up, i);
        make_slot(l[0].c, &down, i);
    }
    printf("%s; inputs made in %.1f s\n", cuda->name(l[0].c), now() - start);
    check(l[0].c, &gate_up, "gate");
    check(l[0].c, &down, "down");
    run(l, lanes, SLOTS < experts ? SLOTS : experts, part); /* warm */
    wall = run(l, 1, 2 * SLOTS, part);
    say("one lane, scaled", wall, part, (double)experts / (2 * SLOTS));
    wall = run(l, lanes, experts, part);
    for (int i = 0; i < lanes; i++)
        most += cuda->most(l[i].c);
    printf("%d experts of %d x %d in batches of %d, %d lanes: %.2f s (bar 8, "
           "goal 3.5; MoE-Quant's solve alone 43)\n",
           experts, WIDE, NARROW, batch, lanes, wall);
    say("  its lanes' parts, together", wall, part, 1);
    printf("  buffers on the GPU %.1f GiB; in %.1f GB, out %.1f GB\n",
           (double)most / 0x1p30,
           experts * (4.0 * (25694208 + 2098176) + 2.0 * 3 * WIDE * NARROW) /
               1e9,
           experts * 3.0 * WIDE * NARROW * (0.5 + 4.0 / GROUP) / 1e9);
    for (int i = 0; i < lanes; i++)
        cuda->close(l[i].c);
    return 0;
}
