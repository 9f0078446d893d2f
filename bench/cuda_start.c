/* cuda_start.c - how long a GPU stage takes to start: the plug-in, the context,
 * its libraries and first results; one process that does everything, five of
 * them at once, and five as a pipeline starts them.
 *
 *     cuda_start PLUG-IN */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device/device.h"
#include "gptq/grid/grid_table.h"
#include "gptq/solve/solve_table.h"
#include "hessian/hessian_table.h"
#include "pack/pack_table.h"

enum { COLS = 256, TOKENS = 512, ROWS = 64, PROCESSES = 5, REPEATS = 3 };

static uint16_t weight[TOKENS * COLS];
static uint32_t meta[ROWS * COLS / 128]; /* scale 1, zero 0 */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int first_product(struct cuda_context *c, struct err *e)
{
    static float h[COLS * (COLS + 1) / 2];
    const struct hessian_shape s = { COLS, 0, DT_BF16 };
    struct cuda_hessian *acc;

    if (hessian_functions()->open(&acc, c, &s, e) < 0 ||
        hessian_functions()->add(acc, weight, TOKENS, false, NULL, e) < 0 ||
        hessian_functions()->finish(acc, h, false, e) < 0)
        return e->code;
    return h[0] > 0 ? 0 : err_set(e, E_BUG, "no product");
}

static int first_grid(struct cuda_context *c, struct err *e)
{
    const struct grid_params g = { .rows = ROWS,
                                   .cols = COLS,
                                   .group = 128,
                                   .search = GRID_LP,
                                   .norm = 2.4,
                                   .candidates = 20,
                                   .scale_dtype = DT_F16,
                                   .dtype = DT_BF16 };

    if (grid_functions()->search(c, &g, weight, meta, e) < 0)
        return e->code;
    return meta[0] ? 0 : err_set(e, E_BUG, "no grid");
}

/* A factor and codes; the grids are all of the scale 1. */
static int first_solve(struct cuda_context *c, struct err *e)
{
    static uint32_t input[COLS];
    static bool dead[COLS];
    static float h[COLS * (COLS + 1) / 2];
    static uint8_t codes[ROWS * COLS / 2];
    const struct solve_params p = { .rows = ROWS,
                                    .cols = COLS,
                                    .group = 128,
                                    .dtype = DT_BF16,
                                    .scale_dtype = DT_F16 };
    struct cuda_matrix m = {
        .h = h, .input = input, .dead = dead, .mean = 2, .damping = 0.01
    };
    struct cuda_module one = { .w = weight, .meta = meta, .codes = codes };
    struct cuda_factors *f;

    for (uint32_t i = 0; i < COLS; i++) {
        input[i] = i;
        h[i * (i + 3) / 2] = 2;
    }
    if (solve_functions()->factors_build(&f, c, COLS, &m, 1, e) < 0 ||
        solve_functions()->solve(c, &p, f, &one, 1, e) < 0)
        return e->code;
    return one.result.loss > 0 ? 0 : err_set(e, E_BUG, "no codes");
}

static int first_words(struct cuda_context *c, struct err *e)
{
    static uint32_t out[ROWS * COLS / 8];

    if (pack_functions()->words(c, LAYOUT_AWQ, out, (const void *)weight, ROWS,
                                COLS / 8, e) < 0)
        return e->code;
    return out[0] ? 0 : err_set(e, E_BUG, "no words");
}

/* What a process of a pipeline does first, and one that does everything. */
static const struct {
    const char *name;
    struct plugin_table *table;
    int (*run)(struct cuda_context *, struct err *);
} kinds[] = { { "hessian", &hessian_plugin, first_product },
              { "grid", &grid_plugin, first_grid },
              { "solve", &solve_plugin, first_solve },
              { "pack", &pack_plugin, first_words } };
enum { KINDS = ARRAY_LEN(kinds), ALL = KINDS };

static int work(struct cuda_context *c, int kind, struct err *e)
{
    for (int i = 0; i < KINDS; i++)
        if ((kind == ALL || kind == i) && kinds[i].run(c, e) < 0)
            return e->code;
    return 0;
}

static int load(const char *plugin, struct plugin_table *device, struct err *e)
{
    int rc = plugin_load(device, plugin, e);

    for (int i = 0; i < KINDS && rc >= 0; i++)
        rc = plugin_load(kinds[i].table, plugin, e);
    return rc;
}

static int stage(const char *plugin, int kind)
{
    struct plugin_table own = { DEVICE_TABLE, DEVICE_TABLE_VERSION, NULL };
    const struct device_table *device;
    double t[4];
    struct cuda_context *c;
    struct err e;

    t[0] = now();
    if (load(plugin, &own, &e) < 0)
        goto failed;
    device = own.functions;
    t[1] = now();
    if (device->open(&c, 0, 0, &e) < 0)
        goto failed;
    t[2] = now();
    if (work(c, kind, &e) < 0)
        goto failed;
    t[3] = now();
    printf("  %s: plug-in %.3f, context %.3f, libraries and first work %.3f "
           "s\n",
           kind == ALL ? "all" : kinds[kind].name, t[1] - t[0], t[2] - t[1],
           t[3] - t[2]);
    fflush(stdout);
    _exit(0);
failed:
    fprintf(stderr, "cuda_start: %s\n", e.msg);
    _exit(1);
}

/* all: everything in each of them; or each has its own kind. */
static int start(const char *plugin, int n, bool all)
{
    double t = now();
    int status, bad = 0;

    for (int i = 0; i < n; i++)
        if (!fork())
            stage(plugin, all ? ALL : i % KINDS);
    while (wait(&status) > 0)
        bad |= status;
    printf("start of a GPU stage, %d at once%s: %.3f s\n", n,
           all ? ", each with everything" : ", as a pipeline has them",
           now() - t);
    fflush(stdout);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = argc < 2;

    for (int i = 0; i < TOKENS * COLS; i++)
        weight[i] = (uint16_t)(0x3f00 + rand() % 128 + (rand() % 2 << 15));
    for (int i = 0; i < REPEATS && !bad; i++)
        bad = start(argv[1], 1, true) || start(argv[1], PROCESSES, true) ||
              start(argv[1], PROCESSES, false);
    return bad ? 1 : 0;
}
