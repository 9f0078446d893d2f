/* fake_cuda.c - a forge-cuda.so without a GPU, for tests of what the tools give
 * the plug-in: beside a copy of a tool it is the device that it finds.
 *
 * A Hessian is the plain sum over its tokens; a code is the nearest one, off by
 * one where a hash of the module's weights, grids and Hessian says so: whoever
 * gets another module's Hessian gets other codes.  Rounding is plain, and efforts
 * default and best are the CPU's, to the bit.  FAKE_CUDA_LOG: a file that
 * calls are noted in; FAKE_CUDA_MOST: matrices at a time before memory ends;
 * FAKE_CUDA_ROWS: rows that can be moved together before it ends; FAKE_CUDA_WAIT:
 * where a loan is looked at, a file FAKE_CUDA_WAIT.here is made, and
 * FAKE_CUDA_WAIT waited for, by FAKE_CUDA_WAIT_FOR=fetch, finite, factors or hessians there
 * alone; FAKE_CUDA_VERSION: that of forge-solve's table;
 * FAKE_CUDA_NAME, FAKE_CUDA_BLAS: the device's name, the version of a library;
 * FAKE_CUDA_DEVICES: their number; FAKE_CUDA_GRIDS=no: of 8-bit floats there is no memory
 * for grids.  There is none of forge-pack. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/cpu.h"
#include "common/math/quant.h"
#include "device/device.h"
#include "fake_cuda.h"
#include "fake_loan.h"
#include "gptq/grid/grid_table.h"
#include "gptq/solve/fisher_descent.h"
#include "gptq/solve/solve_refined.h"
#include "gptq/solve/solve_table.h"

#define NO_FACTOR 7 /* first element of a Hessian that cannot be factored */

struct cuda_factors {
    uint64_t hash[4096];
    int n;
    uint64_t cols;
    double damping;
    float *h[4096], *drift[4096]; /* copies, of whole ones */
    float prior[4096];
};

void fake_note(const char *what, int n, uint64_t rows, uint64_t cols)
{
    const char *path = getenv("FAKE_CUDA_LOG");
    FILE *f = path ? fopen(path, "a") : NULL;

    if (!f)
        return;
    fprintf(f, "%s %d %llux%llu\n", what, n, (unsigned long long)rows,
            (unsigned long long)cols);
    fclose(f);
}

static bool too_many(int n)
{
    const char *most = getenv("FAKE_CUDA_MOST");

    return most && n > atoi(most);
}

static uint64_t hash(uint64_t seed, const void *data, size_t n)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < n; i++)
        seed = (seed ^ p[i]) * 0x100000001b3;
    return seed;
}

static int count(void)
{
    const char *devices = getenv("FAKE_CUDA_DEVICES");

    return devices ? atoi(devices) : 1;
}

static int open_context(struct cuda_context **c, int device, uint64_t memory,
                        struct err *e)
{
    if (device >= count())
        return err_set(e, E_DEVICE, "fake: no device %d", device);
    if (getenv("FAKE_CUDA_DEVICES"))
        fake_note("device", device, 0, 0);
    *c = calloc(1, sizeof(**c));
    if (!*c)
        return err_set(e, E_TEMP, "fake");
    (*c)->memory = memory;
    return 0;
}

static void begin(int device)
{
    (void)device;
}

static int prepare(struct cuda_context *c, bool factors, struct err *e)
{
    (void)c;
    (void)e;
    (void)factors;
    return 0;
}

static int facts(struct cuda_context *c, bool factors, struct device_facts *f,
                 struct err *e)
{
    const char *name = getenv("FAKE_CUDA_NAME");
    const char *blas = getenv("FAKE_CUDA_BLAS");

    (void)e;
    *f = (struct device_facts){ .memory = fake_limit(c),
                                .free = fake_limit(c),
                                .room = fake_limit(c) };
    snprintf(f->stamp, sizeof(f->stamp), "%s, cuBLAS %s%s",
             name ? name : "Fake GPU", blas ? blas : "1.2.3",
             factors ? ", cuSOLVER 4.5.6" : "");
    return 0;
}

/* ---- weights in 8-bit floats, and grids ---- */

/* The weight that *w or fp8 is: *w, or new memory, *wide.  E_BUG: it is neither, or
 * both. */
static int widen(const void **w, const struct fp8_matrix *fp8, void **wide,
                 struct err *e)
{
    *wide = NULL;
    if (!*w != (fp8 != NULL))
        return err_set(e, E_BUG, "fake: no weight");
    if (!fp8)
        return 0;
    fake_note("widen", 1, fp8->rows, fp8->cols);
    *wide = mem_pages(fp8->rows * fp8->cols * 2, "fake", e);
    if (!*wide)
        return e->code;
    fp8_to_bf16(*wide, fp8);
    *w = *wide;
    return 0;
}

static int grid_fake(struct cuda_context *c, const struct grid_params *p,
                     const void *w, uint32_t *meta, struct err *e)
{
    const char *grids = getenv("FAKE_CUDA_GRIDS");
    struct grid_params q = *p;
    void *wide;
    int rc;

    (void)c;
    if (p->fp8 && grids && !strcmp(grids, "no"))
        return err_set(e, E_TEMP, "fake: out of memory");
    rc = widen(&w, p->fp8, &wide, e);
    q.fp8 = NULL;
    if (rc >= 0)
        rc = grid_cpu.search(&q, w, meta, e);
    free(wide);
    return rc;
}

/* ---- factors and codes ---- */

static int build(struct cuda_factors **out, struct cuda_context *c,
                 uint64_t cols, struct cuda_matrix *m, int n, struct err *e)
{
    struct cuda_factors *f = calloc(1, sizeof(*f));

    (void)c;
    fake_note("factors", n, cols, cols);
    *out = NULL;
    if (too_many(n)) {
        free(f);
        return err_set(e, E_TEMP, "fake: out of memory");
    }
    f->n = n;
    f->cols = cols;
    f->damping = m[0].damping;
    for (int i = 0; i < n; i++) {
        size_t bytes = cols * (cols + 1) / 2 * sizeof(*m->h);

        if (fake_is_block(m[i].h, bytes))
            fake_wait("factors");
        f->hash[i] = hash(n ? 14695981039346656037u : 0, m[i].h, bytes);
        f->hash[i] = hash(f->hash[i], m[i].input, cols * sizeof(*m->input));
        m[i].tried[0] = m[i].damping;
        m[i].n_tried = 1;
        m[i].lambda = m[i].damping * m[i].mean;
        m[i].bad = !isfinite(m[i].h[0]);
        m[i].failed = m[i].bad || m[i].h[0] == NO_FACTOR;
        f->prior[i] = m[i].prior;
        if (m[i].whole && (f->h[i] = malloc(bytes)))
            memcpy(f->h[i], m[i].h, bytes);
        for (uint64_t k = 0; f->h[i] && m[i].prior > 0 && k < cols; k++)
            if (f->h[i][k * (k + 3) / 2] > 0)
                f->h[i][k * (k + 3) / 2] += m[i].prior;
    }
    *out = f;
    return 0;
}

static int drift_fake(struct cuda_factors *f, int i, const float *drift,
                      struct err *e)
{
    size_t bytes = f->cols * f->cols * sizeof(*drift);

    for (int k = 0; k < f->n && !drift; k++) {
        free(f->drift[k]);
        f->drift[k] = NULL;
    }
    if (!drift)
        return 0;
    fake_note("drift", i, f->cols, f->cols);
    if (!f->drift[i] && !(f->drift[i] = malloc(bytes)))
        return err_set(e, E_TEMP, "fake: out of memory");
    memcpy(f->drift[i], drift, bytes);
    return 0;
}

static void free_factors(struct cuda_factors *f)
{
    for (int i = 0; f && i < f->n; i++) {
        free(f->h[i]);
        free(f->drift[i]);
    }
    free(f);
}

/* Nearest codes, off by one where the seed says; NULL: nowhere. */
static int round_codes(const struct solve_params *p, uint64_t *seed,
                       struct cuda_module *m, struct err *e)
{
    uint64_t groups = quant_groups(p->cols, p->group);
    uint64_t item = dtype_bits(p->dtype) / 8;
    uint8_t *row = malloc(p->cols);
    float *w = malloc(p->cols * sizeof(*w));
    int rc = 0;

    for (uint64_t r = 0; r < p->rows && !rc; r++) {
        const uint32_t *meta = m->meta + r * groups;

        if (!to_f32(w, (const char *)m->w + r * p->cols * item, p->dtype,
                    p->cols))
            rc = err_set(e, E_CONFIG, "fake: no weights");
        for (uint64_t c = 0; c < p->cols && !rc; c++) {
            if (!isfinite(w[c]))
                rc = err_set(e, E_DATA, "row %llu: input %llu is not finite",
                             (unsigned long long)r, (unsigned long long)c);
            row[c] = (uint8_t)quant_code(
                w[c], quant_grid(meta[c / p->group], p->scale_dtype));
            if (seed) {
                *seed = hash(*seed, &c, 1);
                row[c] ^= *seed >> 58 == 0;
            }
        }
        if (!rc)
            quant_pack_row(m->codes + r * p->cols / 2, row, p->cols, 4);
    }
    free(row);
    free(w);
    return rc;
}

static int solve_one(const struct solve_params *p, uint64_t seed,
                     struct cuda_module *m, struct err *e)
{
    uint64_t groups = quant_groups(p->cols, p->group);

    seed = hash(seed, m->w, p->rows * p->cols * dtype_bits(p->dtype) / 8);
    seed = hash(seed, m->meta, p->rows * groups * sizeof(*m->meta));
    m->result = (struct solve_result){ (double)(seed >> 40), 1e9 };
    return round_codes(p, &seed, m, e);
}

static int solve_fake(struct cuda_context *c, const struct solve_params *p,
                      const struct cuda_factors *f, struct cuda_module *m,
                      int n, struct err *e)
{
    int rc = 0;

    (void)c;
    fake_note("solve", n, p->rows, p->cols);
    if (n % f->n)
        return err_set(e, E_DATA, "fake: %d modules, %d factors", n, f->n);
    for (int i = 0; i < n && rc >= 0; i++) {
        void *wide;

        rc = widen(&m[i].w, m[i].fp8, &wide, e);
        if (rc >= 0)
            rc = solve_one(p, f->hash[i / (n / f->n)], m + i, e);
        free(wide);
    }
    return rc;
}

/* G + prior W. */
static float *with_prior(const struct refined_params *p,
                         const struct cuda_refined *m, float prior,
                         struct err *e)
{
    uint64_t n = p->solve.rows * p->solve.cols;
    float *to = mem_pages(n * sizeof(*to), "fake", e);

    if (!to || !to_f32(to, m->w, p->solve.dtype, n))
        return to;
    for (uint64_t i = 0; i < n; i++)
        to[i] = m->output[i] + prior * to[i];
    return to;
}

/* One module by the CPU, on matrix i of f. */
static int refine_one(const struct refined_params *p, int starts,
                      const struct cuda_factors *f, int i,
                      struct cuda_refined *m, struct err *e)
{
    struct factor_params q = { .cols = f->cols,
                               .group = p->solve.group,
                               .damping = f->damping };
    uint64_t n = p->solve.rows * p->solve.cols;
    struct refined_params own = *p;
    struct refined_hessian b;
    float *target = NULL, *output = NULL;
    int rc = f->h[i] ? refined_open(&b, &q, starts, f->h[i], false, e) :
                       err_set(e, E_DATA, "fake: not a whole factor");

    if (rc < 0)
        return rc;
    if (f->drift[i] || m->output)
        rc = target_open(&b.target, &b.plan[0], f->drift[i], e);
    if (m->output && !p->gap && f->prior[i] > 0 && rc >= 0 &&
        !(output = with_prior(p, m, f->prior[i], e)))
        rc = e->code;
    if (m->fisher && rc >= 0 &&
        !(target = mem_pages(n * sizeof(*target), "fake", e)))
        rc = e->code;
    own.output = output ? output : m->output;
    own.target = m->target ? m->target : target;
    if (rc >= 0)
        rc = refined_solve(&own, &b, m->w, m->meta, m->codes, &m->result, e);
    if (rc >= 0 && m->fisher) {
        const struct fisher_descent d = { .rows = p->solve.rows,
                                          .group = p->solve.group,
                                          .scale_dtype = p->solve.scale_dtype,
                                          .sweeps = p->fisher_sweeps,
                                          .plan = &b.plan[0],
                                          .hessian = f->h[i],
                                          .fisher = m->fisher,
                                          .target = own.target,
                                          .meta = m->meta };
        int64_t moved = fisher_descent(&d, m->codes, &m->result.solve.loss, e);

        rc = moved < 0 ? (int)moved : 0;
    }
    free(target);
    free(output);
    refined_close(&b);
    return rc;
}

static int refined_fake(struct cuda_context *c, const struct refined_params *p,
                        const struct refined_hessian *b, struct cuda_refined *m,
                        int n, struct err *e)
{
    const struct cuda_factors *f = b->factor[0]->gpu;
    const char *most = getenv("FAKE_CUDA_ROWS");
    int rc = 0;

    (void)c;
    fake_note(m->fisher ? "together" : "refine", n, p->solve.rows,
              p->solve.cols);
    if (n % f->n)
        return err_set(e, E_DATA, "fake: %d modules, %d factors", n, f->n);
    if (m->fisher && most && p->solve.rows > (uint64_t)atoi(most))
        return err_set(e, E_TEMP, "fake: out of memory");
    for (int i = 0; i < n && rc >= 0; i++) {
        void *wide;

        rc = widen(&m[i].w, m[i].fp8, &wide, e);
        if (rc >= 0)
            rc = refine_one(p, b->starts, f, i / (n / f->n), m + i, e);
        free(wide);
    }
    return rc;
}

static int nearest_fake(struct cuda_context *c, const struct solve_params *p,
                        struct cuda_module *m, struct err *e)
{
    (void)c;
    fake_note("round", 1, p->rows, p->cols);
    return round_codes(p, NULL, m, e);
}

/* ---- the tables ---- */

#define EXPORT __attribute__((visibility("default")))

EXPORT const struct device_table forge_device_table = {
    .version = DEVICE_TABLE_VERSION,
    .count = count,
    .open = open_context,
    .begin = begin,
    .prepare = prepare,
    .block = fake_block,
    .drop = fake_drop,
    .handle = fake_handle,
    .map = fake_map,
    .fetch = fake_fetch,
    .settle = fake_settle,
    .facts = facts,
};
EXPORT const struct grid_table forge_grid_table = {
    .version = GRID_TABLE_VERSION,
    .search = grid_fake,
};
EXPORT struct solve_table forge_solve_table = {
    .version = SOLVE_TABLE_VERSION,
    .factors_build = build,
    .factors_drift = drift_fake,
    .factors_free = free_factors,
    .solve = solve_fake,
    .solve_refined = refined_fake,
    .nearest = nearest_fake,
};

/* Another version of forge-solve's table.  This library has the CPU's level to
 * itself: it is the tools'. */
static __attribute__((constructor)) void set_up(void)
{
    const char *version = getenv("FAKE_CUDA_VERSION");
    struct err e;

    if (cpu_choose(getenv("FORGE_CPU"), &e) < 0)
        return; /* so does the tool, with a message */

    if (version)
        forge_solve_table.version = (uint32_t)atoi(version);
}
