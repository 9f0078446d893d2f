/* grid_bench - search the grids of one layer in one thread: the bits of the
 * plain code first, then its time: grid_bench [N].
 *
 * Counted: weights times grids that are tried. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "gptq/grid/grid.h"
#include "gptq/grid/grid_cost.h"
#include "peak.h"

enum { GROUP = 128, CANDIDATES = 64, ROUNDS = 5 };

static struct err err;

static void *room(size_t n)
{
    void *p = mem_pages(n, "bench", &err);

    if (!p)
        die_err(&err);
    return p;
}

/* What grid.h says, one grid after the other, by the plain code. */
static uint32_t plain(const struct grid_params *p, const float *w,
                      const float *c)
{
    enum cpu_level level = cpu_level();
    grid_cost_fn *cost;
    uint32_t best = 0;
    double least = INFINITY;
    float top = 0;

    cpu_set(CPU_PLAIN);
    cost = grid_cost_best();
    cpu_set(level);
    for (int i = 0; i < GROUP; i++)
        top = fmaxf(top, fabsf(w[i]));
    for (int i = 0; i < CANDIDATES; i++) {
        double f = GRID_FACTOR_HI -
                   (GRID_FACTOR_HI - GRID_FACTOR_LO) * i / (CANDIDATES - 1);
        uint32_t meta =
            quant_meta((float)(f * 2 * top / 15), 8, true, 4, DT_F16);
        struct grid_batch b = {
            1, { quant_grid(meta, DT_F16).scale }, { -8 }, { 7 }
        };
        double loss;

        cost(w, c, GROUP, &b, (float)p->norm, &loss);
        loss *= p->norm == 2 ? (double)b.scale[0] * b.scale[0] :
                               pow(b.scale[0], p->norm);
        if (loss < least) {
            least = loss;
            best = meta;
        }
    }
    return best;
}

static void run(const struct grid_params *p, const float *w, const char *what)
{
    uint64_t groups = p->rows * p->cols / GROUP, bad = 0;
    uint32_t *meta = room(groups * sizeof(*meta));
    double best = 1e9, slow = seconds(), tried;

    for (int i = 0; i < ROUNDS; i++) {
        double t = seconds();

        if (grid_cpu.search(p, w, meta, &err) < 0)
            die_err(&err);
        t = seconds() - t;
        best = t < best ? t : best;
    }
    slow = seconds();
    for (uint64_t g = 0; g < groups; g += 8) {
        float c[GROUP], top = 0;
        const float *from =
            p->importance ? p->importance + g * GROUP % p->cols : NULL;

        for (int i = 0; from && i < GROUP; i++)
            top = fmaxf(top, from[i]);
        for (int i = 0; from && i < GROUP; i++)
            c[i] = from[i] / top;
        bad += plain(p, w + g * GROUP, from ? c : NULL) != meta[g];
    }
    slow = 8 * (seconds() - slow);
    tried = (double)(p->rows * p->cols) * CANDIDATES;
    printf("grid %llu x %llu, %s: %llu of %llu differ, %.0f ms, %.1f billion "
           "weights a second, %.1fx plain code\n",
           (unsigned long long)p->rows, (unsigned long long)p->cols, what,
           (unsigned long long)bad, (unsigned long long)groups / 8, best * 1e3,
           tried / best / 1e9, slow / best);
    if (bad)
        exit(1);
    free(meta);
}

int main(int argc, char **argv)
{
    uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 1024, s = 1;
    float *w = room(n * n * sizeof(*w)), *c = room(n * sizeof(*c));
    struct grid_params p = { .rows = n,
                             .cols = n,
                             .group = GROUP,
                             .symmetric = true,
                             .candidates = CANDIDATES,
                             .scale_dtype = DT_F16,
                             .dtype = DT_F32 };

    base_init(argv[0]);
    threads_set(1);
    if (!n || n % GROUP)
        die(E_USAGE, "N must be a multiple of %d", GROUP);
    for (uint64_t i = 0; i < n * n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        w[i] = (float)(int32_t)(s >> 32) / 1e11f;
    }
    for (uint64_t i = 0; i < n; i++)
        c[i] = 1 + (float)(i * 7 % 13);
    p.search = GRID_LP;
    p.norm = 2.4;
    run(&p, w, "powers of 2.4");
    p.search = GRID_HESSIAN;
    p.norm = 2;
    p.importance = c;
    run(&p, w, "squares weighted by diag H");
    free(w);
    free(c);
    return 0;
}
