/* refined_internal.cuh - what the files of the refined solver
 * (gptq/solve/solve_refined.h) share.
 *
 * All arrays are transposed, as in the solver: the `pitch` rows of a column are
 * contiguous, columns in the factor's order.  A launch works on n Hessians, each
 * with the rows of `share` modules.  A group of up to REFINED_WIDE adjacent
 * columns is one launch; a block of threads owns REFINED_ROWS rows, and several
 * threads share a row. */
#ifndef FORGE_CUDA_REFINED_INTERNAL_CUH
#define FORGE_CUDA_REFINED_INTERNAL_CUH

#include "cuda/solve_internal.cuh"

enum {
    REFINED_WIDE = SOLVE_BLOCK, /* columns of a group, at most */
    REFINED_ROWS = 16,          /* of a block of threads */
    REFINED_SUB = 32,           /* columns that a thread holds in registers */
    REFINED_TILE = SOLVE_TILE   /* rows of a module are padded to */
};

/* Rows of the weights of a batch on the device. */
struct refined_state {
    int n, share;         /* matrices; modules of each */
    uint64_t rows;        /* of a module */
    uint64_t module_rows; /* the same, padded to REFINED_TILE */
    uint64_t pitch;       /* of all modules of a matrix */
    uint64_t padded, groups;
    float *w;             /* [n, padded, pitch]: the targets */
    float *d;             /* [n, padded, pitch]: w - q */
    __nv_bfloat16 *split; /* [n, padded, 3, pitch]: d as high, high, low */
    float *gradient;      /* [n, REFINED_SUPER, pitch]: d times a square */
    __nv_bfloat16 *moved; /* [n, REFINED_WIDE, 3, pitch]: what a group's d has
                             changed by, as split */
    uint8_t *codes;       /* [n, padded, pitch] */
    uint32_t *meta;       /* [n, groups, pitch] */
    double *loss;         /* [n, padded / REFINED_WIDE, pitch] */
    double *factors;      /* block_factor() of all */
    int *any;             /* whether a sweep has moved anything */
    const float *mantissa;
};

/* A group, for a kernel: pointers to its first column in matrix 0. */
struct refined_group {
    const float *w;
    float *d;
    __nv_bfloat16 *split;
    const float *gradient; /* what is pushed onto it, or d H */
    __nv_bfloat16 *moved;
    uint8_t *codes;
    uint32_t *meta;        /* of group 0 */
    const uint32_t *input; /* of its first column: which group it is */
    const float *square;   /* [n, REFINED_WIDE]: its part of L or H, by rows */
    uint64_t pitch, padded, cols, groups;
    uint32_t group; /* inputs of one */
    uint32_t n;     /* columns: a multiple of 8 */
    const float *mantissa;
    const double *factors;
    int n_factors, candidates;
    bool symmetric, negative;
    bool given; /* plain GPTQ on the grids in meta: only d is computed */
    int *any;
};

/* The same group of matrix m; meta: its own row. */
static __device__ __forceinline__ struct refined_group
refined_of(struct refined_group g, uint32_t m)
{
    uint64_t columns = m * g.padded * g.pitch;

    g.w += columns;
    g.d += columns;
    g.split += 3 * columns;
    g.gradient += m * REFINED_SUPER * g.pitch;
    g.moved += m * 3 * REFINED_WIDE * g.pitch;
    g.codes += columns;
    g.meta += (m * g.groups + g.input[m * g.cols] / g.group) * g.pitch;
    g.square += m * g.padded * REFINED_WIDE;
    return g;
}

/* x as high, high, low; to: the first, the others `pitch` behind it. */
static __device__ __forceinline__ void refined_split(__nv_bfloat16 *to,
                                                     uint64_t pitch, float x)
{
    __nv_bfloat16 high = __float2bfloat16_rn(x);

    to[0] = high;
    to[pitch] = high;
    to[2 * pitch] = __float2bfloat16_rn(x - __bfloat162float(high));
}

/* 16 bytes to shared memory, on their way until refined_arrived(). */
static __device__ __forceinline__ void refined_copy(float *to,
                                                    const float *from)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(to);

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at),
                 "l"(from));
}
static __device__ __forceinline__ void refined_arrived(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

/* Scale with its sign. */
template <enum dtype S>
static __device__ __forceinline__ float refined_scale(const float *mantissa,
                                                      uint32_t meta)
{
    float s = meta_scale<S>(mantissa, meta);

    return meta >> 24 & QUANT_NEGATIVE ? -s : s;
}

/* quant_meta() on the device; about log2 see grid_cuda.cu. */
template <enum dtype S>
static __device__ __forceinline__ uint32_t refined_meta(float scale, int zero,
                                                        bool symmetric)
{
    double lo = S == DT_F16 ? -14 * 256 : -126 * 256;
    double hi = S == DT_F16 ? 16 * 256 - 1 : 128 * 256 - 2, q = 0;

    if (!(scale > 0) || !isfinite(scale))
        zero = 8;
    else
        q = fmin(fmax(rint(log2((double)scale) * 256), lo), hi);
    return (uint32_t)(uint16_t)(int16_t)q |
           (uint32_t)(symmetric ? 8 : zero) << 16 |
           (symmetric ? (uint32_t)QUANT_SYMMETRIC << 24 : 0);
}

/* sum[j..j+7][r] += sum over k of x[k][r] P[k][j..j+7], for the REFINED_SUB
 * columns k from `first` on; rows(k) is the address of row k of P. */
template <class Rows>
static __device__ __forceinline__ void
refined_push(float (*sum)[REFINED_ROWS], const float (*x)[REFINED_ROWS],
             int first, int j, int r, Rows rows)
{
    float acc[SOLVE_PUSH];

#pragma unroll
    for (int i = 0; i < SOLVE_PUSH; i++)
        acc[i] = sum[j + i][r];
#pragma unroll 8
    for (int k = first; k < first + REFINED_SUB; k++)
        solve_push(acc, x[k][r], rows(k) + j);
#pragma unroll
    for (int i = 0; i < SOLVE_PUSH; i++)
        sum[j + i][r] = acc[i];
}

/* n rounded up to whole sub-blocks of REFINED_SUB columns. */
static __device__ __forceinline__ int refined_columns(uint32_t n)
{
    return (int)((n + REFINED_SUB - 1) / REFINED_SUB * REFINED_SUB);
}

/* Choose the grid of a group and quantize it (refined_group_cuda.cu), or move its
 * codes and its scale (refined_descent_cuda.cu), for all rows of n matrices. */
int refined_choose(struct cuda_context *c, enum dtype scale_dtype,
                   const struct refined_group *g, int n, struct err *e);
int refined_descend(struct cuda_context *c, enum dtype scale_dtype,
                    const struct refined_group *g, int n, struct err *e);
/* A pass over all groups of a batch: one of the two, or quantizing on the grids
 * that are set. */
enum refined_step { REFINED_PLAIN, REFINED_CHOOSE, REFINED_DESCENT };
struct refined_pass {
    const struct refined_params *p;
    const struct cuda_factors *f;
    const struct tile_plan *plan;
    const struct refined_state *s;
    enum refined_step what;
};
int refined_walk(struct cuda_context *c, const struct refined_pass *j,
                 struct err *e);
/* Sweeps of coordinate descent until nothing moves, at most j->p->sweeps. */
int refined_sweep(struct cuda_context *c, const struct refined_pass *j,
                  struct err *e);
/* The result of one order (start): [modules, rows] of each. */
struct refined_found {
    uint8_t *codes; /* of later orders; the first's are the modules' */
    uint32_t *meta;
    double *loss;
};

/* Rows of the modules, from `first` on. */
struct refined_job {
    const struct refined_params *p;
    const struct refined_hessian *b;
    struct cuda_refined *m;
    int modules;
    uint64_t first;
    struct refined_found found[REFINED_STARTS];
    double *nearest, *plain; /* [modules, rows]; of compared rows */
    double *kept;            /* [modules, rows]: 1 where a row stays */
};

static inline struct cuda_factors *refined_factors(const struct refined_job *j,
                                                   int start)
{
    return j->b->factor[start]->gpu;
}

/* Where a module's first row is: in columns of w, groups of meta, losses. */
static inline uint64_t refined_first(const struct refined_state *s, int module,
                                     uint64_t each)
{
    return module / s->share * each * s->pitch +
           module % s->share * s->module_rows;
}

/* Before a pass: d of the padding is zero. */
int refined_restart(struct cuda_context *c, const struct cuda_factors *f,
                    const struct refined_state *s, struct err *e);
/* The losses of round to nearest and plain GPTQ, to j->nearest and j->plain of
 * the rows of the sample that are in s; its codes and d are scratch. */
int refined_compare(struct cuda_context *c, const struct refined_job *j,
                    const struct refined_state *s, struct err *e);
/* loss[n, pitch] = d H dT of each row, on the host. */
int refined_measure(struct cuda_context *c, const struct cuda_factors *f,
                    const struct refined_state *s, double *loss, struct err *e);
/* The targets of the first order moved, see target.h; s->d and s->split are
 * scratch, s->loss [n, pitch] is 1 in rows that stay.  output[n * share]: G or F
 * of each module, on the host; NULL: by the drift, if there is one. */
int refined_move_target(struct cuda_context *c, const struct refined_params *p,
                        const struct cuda_factors *f,
                        const struct refined_state *s,
                        const float *const *output, struct err *e);
/* n modules of a call, from `first` on, which have the same F: the rows of each,
 * m[i].codes on the grids meta[modules, rows, groups], are moved together by it
 * (gptq/solve/fisher_descent.h). */
struct refined_rows {
    const struct cuda_factors *f;
    const struct tile_plan *plan;
    int first, n;
    const struct cuda_refined *m;
    const uint32_t *meta;
};
/* s has its targets in the order of f, and then its codes and d.  c->square and
 * c->fill are scratch. */
int refined_together(struct cuda_context *c, const struct refined_params *p,
                     const struct refined_state *s,
                     const struct refined_rows *x, struct err *e);
/* L's and H's parts in the groups of a plan, into f. */
int refined_squares(struct cuda_context *c, struct cuda_factors *f,
                    const struct tile_plan *plan, struct err *e);
/* to[n, n, 3] = L turned: L[r][c] at to[3 (r * n + c)], as high, low, high. */
int refined_turn(struct cuda_context *c, __nv_bfloat16 *to, const float *l,
                 uint64_t n, struct err *e);
/* v: inverses of the 512 x 512 blocks on L's diagonal, by columns, each after the
 * other, an identity beyond L [n, n]; in the context's buffer. */
int refined_inverses(struct cuda_context *c, const float *l, uint64_t n,
                     const float **v, struct err *e);
/* split of n columns from[n, pitch] of each of `count` matrices, `step` columns
 * apart. */
int refined_split_columns(struct cuda_context *c, __nv_bfloat16 *to,
                          const float *from, uint64_t n, uint64_t pitch,
                          uint64_t step, int count, struct err *e);
/* to[m, n] = alpha a b + beta to by columns, of `count` matrices: a[m, 3 k] is
 * split, b[3 k, n] too, its columns 3 ldb apart.  bf16 with f32 sums; what is
 * lost is low times low, 2^-16 of a term (solve_cuda.cu). */
struct refined_product {
    uint64_t n, k;
    float alpha;
    const __nv_bfloat16 *a;
    uint64_t step_a; /* from one matrix to the next: elements, here and below */
    const __nv_bfloat16 *b;
    uint64_t ldb, step_b;
    float beta;
    float *to;
    uint64_t step_to;
    int count;
};
/* m: rows of all modules of a matrix, `rows` of one. */
int refined_product(struct cuda_context *c, uint64_t m, uint64_t rows,
                    const struct refined_product *p, struct err *e);

#endif
