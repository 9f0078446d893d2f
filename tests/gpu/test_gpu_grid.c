/* The search on the GPU gives the CPU's grids, to the bit. */
#include "gpu.h"

#include "gptq/grid/grid_table.h"

enum { ROWS = 83, COLS = 552 };

static const struct {
    enum grid_search search;
    double norm;
    int candidates;
} searches[] = {
    { GRID_ABSMAX, 2.4, 1 },  { GRID_LP, 2.4, 100 },     { GRID_LP, 2, 60 },
    { GRID_LP, 1, 33 },       { GRID_LP, 4, 20 },        { GRID_LP, 2.4, 1 },
    { GRID_HESSIAN, 2, 100 }, { GRID_HESSIAN, 2.4, 40 }, { GRID_LP, 3.1, 7 },
    { GRID_LP, 2.4, 1024 },
};

/* Rows that searches find hard: zeros, one weight alone, tiny and large ones,
 * weights that lie on a grid, and one sign. */
static void spoil(float *w)
{
    for (int r = 0; r < 12; r++)
        for (int i = 0; i < COLS; i++) {
            float *x = w + r * COLS + i;

            switch (r) {
            case 0: *x = 0; break;
            case 1: *x = i % 32 == 7 ? normal() : 0; break;
            case 2: *x *= 1e-7f; break;
            case 3: *x *= 1e4f; break;
            case 4: *x = (float)((int)(rnd() % 16) - 8) * 0.0078125f; break;
            case 5: *x = fabsf(*x); break;
            case 6: *x = -fabsf(*x); break;
            case 7: *x = 1; break;
            case 8: *x = (float)((int)(rnd() % 16)) * 0.03f; break;
            case 9: *x *= 1e-20f; break;
            case 10: *x = i % 2 ? *x : *x * 1e-30f; break;
            default: *x = (float)(rnd() % 3) - 1; break;
            }
        }
}

static size_t compare(const struct grid_params *p, const void *w)
{
    uint64_t n = p->rows * quant_groups(p->cols, p->group);
    uint32_t *want = room(n * 4), *got = room(n * 4);
    size_t wrong = 0;

    OK(grid_cpu.search(p, w, want, e));
    OK(grid_functions()->search(gpu, p, w, got, e));
    for (uint64_t i = 0; i < n; i++)
        if (want[i] != got[i] && !wrong++)
            fprintf(stderr,
                    "search %d norm %g candidates %d symmetric %d group %d "
                    "dtype %d scale %d: group %d: want %08x, got %08x\n",
                    (int)p->search, p->norm, p->candidates, p->symmetric,
                    (int)p->group, (int)p->dtype, (int)p->scale_dtype, (int)i,
                    want[i], got[i]);
    free(want);
    free(got);
    return wrong;
}

static void check_not_finite(void)
{
    struct grid_params p = { .rows = 4,
                             .cols = 64,
                             .group = 32,
                             .symmetric = true,
                             .search = GRID_LP,
                             .norm = 2,
                             .candidates = 4,
                             .scale_dtype = DT_F16,
                             .dtype = DT_F32 };
    float w[256];
    uint32_t meta[8];
    struct err e;

    for (int i = 0; i < 256; i++)
        w[i] = normal();
    w[3 * 64 + 17] = NAN;
    CHECK(grid_functions()->search(gpu, &p, w, meta, &e) == E_DATA);
    CHECK(!strcmp(e.msg, "row 3: input 17 is not finite"));
}

/* 8-bit floats give the grids of their bf16; also in slices that end within blocks, in a
 * context of little memory. */
static size_t check_fp8(enum dtype t, uint64_t cols, struct cuda_context *c)
{
    struct grid_params p = { .rows = 300,
                             .cols = cols,
                             .group = 128,
                             .symmetric = true,
                             .search = GRID_LP,
                             .norm = 2.4,
                             .candidates = 20,
                             .scale_dtype = DT_F16,
                             .dtype = DT_BF16 };
    uint64_t n = p.rows * quant_groups(p.cols, p.group);
    uint32_t *want = room(n * 4), *got = room(n * 4);
    uint16_t *w;
    struct fp8_matrix m = random_fp8(t, p.rows, p.cols, &w);
    size_t wrong = 0;

    OK(grid_cpu.search(&p, w, want, e));
    p.fp8 = &m;
    OK(grid_functions()->search(c, &p, NULL, got, e));
    for (uint64_t i = 0; i < n; i++)
        wrong += want[i] != got[i];
    printf("%s [300, %d]: %zu grids differ\n", dtype_name(t), (int)cols, wrong);
    free_fp8(&m);
    free(w);
    free(want);
    free(got);
    return wrong;
}

static size_t check_all_fp8(void)
{
    struct cuda_context *little;

    OK(device->open(&little, 0, 1 << 20, e));
    return check_fp8(DT_F8_E4M3, 552, gpu) + check_fp8(DT_F8_E5M2, 608, gpu) +
           check_fp8(DT_F8_E4M3, 552, little) +
           check_fp8(DT_F8_E4M3, 608, little);
}

/* PLUG-IN SEED small: bf16 weights, groups of 32 alone */
int main(int argc, char **argv)
{
    static const enum dtype dtypes[] = { DT_BF16, DT_F16, DT_F32 };
    static const enum dtype scales[] = { DT_F16, DT_BF16 };
    static const uint64_t groups[] = { 128, 32, 200, 1000 };
    const bool small = argc > 3; /* for sanitizers */
    float importance[COLS];
    size_t runs = 0, wrong = 0;

    gpu_open(argc, argv, &grid_plugin);
    for (size_t s = 0; s < ARRAY_LEN(searches); s++)
        for (size_t d = 0; d < (small ? 1 : 3); d++)
            for (size_t k = small ? 2 : 0;
                 k < (small ? 4 : 2 * ARRAY_LEN(groups)); k++) {
                struct grid_params p = {
                    .rows = ROWS,
                    .cols = COLS,
                    .group = groups[k / 2],
                    .symmetric = k % 2,
                    .search = searches[s].search,
                    .norm = searches[s].norm,
                    .candidates = searches[s].candidates,
                    .scale_dtype = scales[(s + d) % 2],
                    .dtype = dtypes[d],
                };
                float *w = weights(DT_F32, ROWS * COLS);
                void *x = room(ROWS * COLS * 4);

                for (int i = 0; i < COLS; i++)
                    importance[i] = rnd() % 50 ? expf(2 * normal()) : 0;
                p.importance = p.search == GRID_HESSIAN ? importance : NULL;
                spoil(w);
                CHECK(from_f32(x, p.dtype, w, ROWS * COLS));
                wrong += compare(&p, x);
                runs++;
                free(w);
                free(x);
            }
    check_not_finite();
    wrong += check_all_fp8();
    printf("%zu searches of %d x %d weights: %zu grids differ\n", runs, ROWS,
           COLS, wrong);
    return wrong != 0;
}
