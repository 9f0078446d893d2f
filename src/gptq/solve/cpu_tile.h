/* cpu_tile.h - tiles of rows of the solver on the CPU, into and out of the
 * transposed form.
 *
 * A tile is up to CPU_TILE_PANELS panels of 48 rows, transposed: the 48 values of
 * an input lie together, inputs in the factor's order. */
#ifndef FORGE_CPU_TILE_H
#define FORGE_CPU_TILE_H

#include "common/math/lanes.h"
#include "common/math/threads.h"
#include "gptq/solve/factor.h"
#include "gptq/solve/solve.h"
#include "gptq/solve/solve_kernel.h"

enum {
    CPU_TILE_PANELS = 8, /* at most */
    CPU_BLOCK = 256      /* columns that share one product of error feedback */
};

struct cpu_job {
    const struct solve_params *p;
    const struct factor *f;
    const struct solve_kernels *k;
    lanes_transpose_fn *transpose;
    const void *w;
    const uint32_t *meta;
    uint8_t *codes;
    double *loss, *nearest;       /* [rows] */
    const uint32_t *where;        /* [cols]: input -> column of the factor */
    struct threads_shares panels; /* of all rows: a part is a tile */
    atomic_size_t compared;       /* those that are compared, taken so far */
    struct threads_error error;   /* of the smallest row */
};

/* A thread's tile, one after the other in one allocation. */
struct cpu_tile {
    const struct cpu_job *j;
    uint64_t first, rows, panels, padded, groups;
    float *d;   /* [panels][padded][48]; split: of blocks that are solved
                          * the left side instead */
    float *acc; /* [panels][CPU_BLOCK][48] */
    float *scale, *zero; /* [panels][groups][48] */
    float *loss, *dist;  /* [panels][48] */
    float *work;         /* split: [panels][SPLIT_WORK] */
    float *strip;        /* [LANES][ld] */
    float *transposed;   /* [ld][LANES] */
    uint8_t *codes;      /* [panels][padded][48] */
    uint8_t *stored;     /* [ld][LANES]: bytes of codes as they are stored */
    uint64_t ld;         /* row stride; never a power of two */
    void *memory;
};

/* Address of panel q's displacements of column c. */
static inline float *cpu_tile_at(const struct cpu_tile *t, uint64_t q,
                                 uint64_t c)
{
    return t->d + (q * t->padded + c) * SOLVE_ROWS;
}

/* Memory for any tile of the job; cpu_tile_close() on errors, too.  E_TEMP. */
MUST_CHECK int cpu_tile_open(struct cpu_tile *t, const struct cpu_job *j,
                             struct err *e);
void cpu_tile_close(struct cpu_tile *t);
/* The tile of n panels from number `first` on. */
void cpu_tile_take(struct cpu_tile *t, uint64_t first, uint64_t n);
void cpu_tile_load_grids(struct cpu_tile *t);
/* d = W.  E_DATA: a weight is not finite. */
MUST_CHECK int cpu_tile_load_weights(struct cpu_tile *t, struct err *e);
/* The rows' codes, to where the job has them. */
void cpu_tile_store_codes(struct cpu_tile *t);

#endif
