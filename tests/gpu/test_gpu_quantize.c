/* quantize() does what grid, factor, solve and pack do one after the other, in
 * batches as well as alone, with any memory; one bad Hessian needs more
 * damping and leaves the others as they are. */
#include "gpu.h"

#include "pack/packing.h"

enum { N = 5, ROWS = 136, COLS = 520, WORDS = ROWS * COLS / 8 };

struct layer {
    struct cuda_matrix h[N];
    void *w[N][CUDA_SETS];
    uint32_t *meta[N][CUDA_SETS], *codes[N][CUDA_SETS];
};

static const struct cuda_quantize plan = {
    .grid = { .rows = ROWS,
              .cols = COLS,
              .group = 128,
              .symmetric = true,
              .search = GRID_LP,
              .norm = 2.4,
              .candidates = 20,
              .scale_dtype = DT_F16,
              .dtype = DT_BF16 },
    .layout = LAYOUT_AWQ,
    .sets = 2,
    .batch = N,
    .compare = true,
};

/* No longer positive definite without much damping: the diagonal element that
 * is nearest to the mean, halved. */
static void spoil(float *h)
{
    double mean = mean_diagonal(h, COLS);
    uint64_t best = 0;

    for (uint64_t j = 0; j < COLS; j++)
        if (fabs(h[j * (j + 3) / 2] - mean) <
            fabs(h[best * (best + 3) / 2] - mean))
            best = j;
    h[best * (best + 3) / 2] *= 0.5f;
}

static void make(struct layer *l)
{
    for (int i = 0; i < N; i++) {
        float *h = random_hessian(COLS, COLS + 200);

        if (i == 2)
            spoil(h);
        l->h[i] = (struct cuda_matrix){ .h = h,
                                        .input = random_order(COLS),
                                        .mean = mean_diagonal(h, COLS),
                                        .damping = 0.003 };
        l->h[i].dead = dead_columns(h, l->h[i].input, COLS);
        for (int s = 0; s < CUDA_SETS; s++) {
            l->w[i][s] = weights(DT_BF16, ROWS * COLS);
            l->meta[i][s] = room(ROWS * 5 * 4);
            l->codes[i][s] = room(WORDS * 4);
        }
    }
}

/* The same, a module at a time. */
static void alone(struct layer *l)
{
    struct solve_params p = { .rows = ROWS,
                              .cols = COLS,
                              .group = 128,
                              .dtype = DT_BF16,
                              .scale_dtype = DT_F16 };

    for (int i = 0; i < N; i++) {
        struct cuda_factors *f;

        OK(cuda->factors_build(&f, gpu, COLS, l->h + i, 1, e));
        printf("hessian %d: damping %g\n", i,
               l->h[i].tried[l->h[i].n_tried - 1]);
        for (int s = 0; s < CUDA_SETS; s++) {
            struct cuda_module m = { .w = l->w[i][s],
                                     .meta = l->meta[i][s],
                                     .codes = (uint8_t *)l->codes[i][s] };

            OK(grid_cpu.search(&plan.grid, m.w, l->meta[i][s], e));
            OK(cuda->solve(gpu, &p, f, &m, 1, e));
        }
        cuda->factors_free(f);
    }
}

static uint64_t compare(const struct layer *l, const struct cuda_linear *q)
{
    uint32_t *want = room(WORDS * 4);
    uint64_t differ = 0;

    for (int i = 0; i < N; i++)
        for (int s = 0; s < CUDA_SETS; s++) {
            CHECK(!memcmp(q[i].set[s].meta, l->meta[i][s], ROWS * 5 * 4));
            CHECK(q[i].set[s].result.loss > 0 &&
                  q[i].set[s].result.loss < q[i].set[s].result.loss_nearest);
            pack_awq(want, l->codes[i][s], ROWS, COLS / 8);
            differ += count_codes((uint8_t *)want, (uint8_t *)q[i].set[s].out,
                                  WORDS * 4);
        }
    free(want);
    return differ;
}

static void check(struct layer *l, uint64_t memory)
{
    struct cuda_linear q[N];
    struct cuda_context *own;
    uint64_t differ;

    OK(cuda->open(&own, 0, memory, e));
    for (int i = 0; i < N; i++)
        for (int s = 0; s < CUDA_SETS; s++) {
            q[i].set[s].w = l->w[i][s];
            q[i].set[s].meta = room(ROWS * 5 * 4);
            q[i].set[s].out = room(WORDS * 4);
        }
    OK(cuda->quantize(own, &plan, l->h, q, N, e));
    for (int i = 0; i < N; i++)
        CHECK(l->h[i].n_tried == (i == 2 ? l->h[i].n_tried : 1));
    CHECK(l->h[2].n_tried > 1);
    differ = compare(l, q);
    printf("memory %.1f MiB: held %.1f MiB, %d codes of %d differ from one at "
           "a time\n",
           (double)memory / 1048576, (double)cuda->most(own) / 1048576,
           (int)differ, 8 * WORDS * N * CUDA_SETS);
    CHECK(!memory || cuda->most(own) <= memory);
    CHECK(differ <= 8ull * WORDS * N * CUDA_SETS / 200);
    for (int i = 0; i < N; i++)
        for (int s = 0; s < CUDA_SETS; s++) {
            free(q[i].set[s].meta);
            free(q[i].set[s].out);
        }
    cuda->close(own);
}

static void check_too_little(struct layer *l)
{
    struct cuda_linear q[N] = { 0 };
    struct cuda_context *own;
    struct err why;

    for (int s = 0; s < CUDA_SETS; s++)
        q[0].set[s].w = l->w[0][s];
    OK(cuda->open(&own, 0, 1 << 20, e));
    CHECK(cuda->quantize(own, &plan, l->h, q, 1, &why) == E_TEMP);
    cuda->close(own);
}

int main(int argc, char **argv)
{
    static struct layer l;

    gpu_open(argc, argv);
    make(&l);
    alone(&l);
    check(&l, 0);
    check(&l, 24 << 20);
    check(&l, 14 << 20);
    check_too_little(&l);
    cuda->close(gpu);
    return 0;
}
