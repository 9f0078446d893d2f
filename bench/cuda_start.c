/* cuda_start.c - how long a GPU stage takes to start: the plug-in, the context,
 * its libraries and a first product and factor; one process, and five at once
 * as a pipeline starts them.
 *
 *     cuda_start PLUG-IN */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda/forge_cuda.h"
#include "cuda/plugin.h"

enum { COLS = 256, TOKENS = 512, ROWS = 64, PROCESSES = 5, REPEATS = 3 };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A product, a factor and a grid, whose results must be something. */
static int work(const struct forge_cuda *cuda, struct cuda_context *c,
                struct err *e)
{
    static uint16_t x[TOKENS * COLS];
    static float h[COLS * (COLS + 1) / 2];
    static uint32_t input[COLS], meta[ROWS * COLS / 128];
    static bool dead[COLS];
    const struct hessian_shape s = { COLS, 0, DT_BF16 };
    const struct grid_params g = { .rows = ROWS,
                                   .cols = COLS,
                                   .group = 128,
                                   .search = GRID_LP,
                                   .norm = 2.4,
                                   .candidates = 20,
                                   .scale_dtype = DT_F16,
                                   .dtype = DT_BF16 };
    struct cuda_matrix m = {
        .h = h, .input = input, .dead = dead, .mean = 2, .damping = 0.01
    };
    struct cuda_factors *f;
    struct cuda_hessian *acc;

    for (int i = 0; i < TOKENS * COLS; i++)
        x[i] = (uint16_t)(0x3f00 + rand() % 128 + (rand() % 2 << 15));
    for (uint32_t i = 0; i < COLS; i++)
        input[i] = i;
    if (cuda->hessian_open(&acc, c, &s, e) < 0 ||
        cuda->hessian_add(acc, x, TOKENS, e) < 0 ||
        cuda->hessian_finish(acc, h, e) < 0 ||
        cuda->factors_build(&f, c, COLS, &m, 1, e) < 0 ||
        cuda->grid(c, &g, x, meta, e) < 0)
        return e->code;
    return h[0] > 0 && meta[0] && !m.failed ? 0 :
                                              err_set(e, E_BUG, "no result");
}

static int stage(const char *plugin)
{
    double t[4];
    const struct forge_cuda *cuda;
    struct cuda_context *c;
    struct err e;

    t[0] = now();
    if (plugin_open_file(&cuda, plugin, &e) < 0)
        goto failed;
    t[1] = now();
    if (cuda->open(&c, 0, 0, &e) < 0)
        goto failed;
    t[2] = now();
    if (work(cuda, c, &e) < 0)
        goto failed;
    t[3] = now();
    printf("  plug-in %.3f, context and libraries %.3f, first work %.3f s\n",
           t[1] - t[0], t[2] - t[1], t[3] - t[2]);
    fflush(stdout);
    _exit(0);
failed:
    fprintf(stderr, "cuda_start: %s\n", e.msg);
    _exit(1);
}

static int start(const char *plugin, int n)
{
    double t = now();
    int status, bad = 0;

    for (int i = 0; i < n; i++)
        if (!fork())
            stage(plugin);
    while (wait(&status) > 0)
        bad |= status;
    printf("start of a GPU stage, %d at once: %.3f s\n", n, now() - t);
    fflush(stdout);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = argc < 2;

    for (int i = 0; i < REPEATS && !bad; i++)
        bad = start(argv[1], 1) || start(argv[1], PROCESSES);
    return bad ? 1 : 0;
}
