/* forge_cuda.h - what the plug-in forge-cuda.so offers: one table of functions.
 *
 * The tools open it at run time (common/plugin.h), so that one build runs on
 * machines with and without a GPU.  All pointers are the host's; matrices are
 * row-major and dense.  A context is one device, one stream, one thread at a
 * time.  Every function returns 0 or fills *e:
 *     E_DEVICE  the device or a library of CUDA failed
 *     E_TEMP    out of GPU or host memory
 *     E_DATA, E_CONFIG  as the CPU's function of the same kind says
 *
 * Grids and packed words are equal to the CPU's to the bit.  Hessians, factors
 * and codes differ by the order of sums alone. */
#ifndef FORGE_CUDA_H
#define FORGE_CUDA_H

#include "common/layout.h"
#include "gptq/grid.h"
#include "gptq/solve.h"
#include "hessian/hessian.h"

enum { FORGE_CUDA_VERSION = 1 };

struct cuda_context;
struct cuda_hessian;
struct cuda_factors;

/* One matrix of a batch of equal size, and what became of it. */
struct cuda_matrix {
    const float *h;             /* packed lower triangle, see hessian.h */
    const uint32_t *input;      /* [cols]: as struct factor has it */
    const bool *dead;           /* [cols]: of column c of the factor */
    double mean;                /* of the live diagonal */
    double damping;             /* the first that is tried, as a part of mean */
    double lambda;              /* out: what was added to the diagonal */
    double tried[FACTOR_TRIES]; /* out */
    int n_tried;                /* out */
    bool failed;                /* out: no damping helped */
};

/* One weight matrix of a batch; its factor has the same number. */
struct cuda_module {
    const void *w;              /* [rows, cols] of params.dtype */
    const uint32_t *meta;       /* [rows, ceil(cols/group)] */
    uint8_t *codes;             /* out: [rows, cols / 2] */
    struct solve_result result; /* out */
};

/* w and meta are rounded to nearest, or codes are taken as they are. */
struct cuda_pack {
    enum layout layout;  /* GPTQ and GPTQ_V2 have the same words */
    uint64_t rows, cols; /* multiples of 8 */
    uint64_t group;      /* of w: a multiple of 8 */
    enum dtype dtype;    /* of w: BF16, F16 or F32 */
    enum dtype scale_dtype;
    const void *w;         /* [rows, cols], or NULL */
    const uint32_t *meta;  /* [rows, ceil(cols/group)] of w */
    const uint32_t *codes; /* [rows, cols / 8] when w is NULL */
    uint32_t *out;         /* as packing.h describes them */
};

struct forge_cuda {
    uint32_t version; /* FORGE_CUDA_VERSION, or this header does not fit */

    /* Number of devices that can be used; 0 when there is no driver. */
    int (*count)(void);
    int (*open)(struct cuda_context **c, int device, struct err *e);
    const char *(*name)(const struct cuda_context *c);
    void (*close)(struct cuda_context *c); /* NULL is allowed */

    /* As hessian_open(), _add() and _finish(), for bf16 tokens. */
    int (*hessian_open)(struct cuda_hessian **h, struct cuda_context *c,
                        const struct hessian_shape *s, struct err *e);
    int (*hessian_add)(struct cuda_hessian *h, const void *x, uint64_t tokens,
                       struct err *e);
    int (*hessian_finish)(struct cuda_hessian *h, float *out, struct err *e);
    void (*hessian_close)(struct cuda_hessian *h); /* NULL is allowed */

    /* Factor n matrices of one size.  0 also when some of them failed: each
     * says so itself. */
    int (*factors_build)(struct cuda_factors **f, struct cuda_context *c,
                         uint64_t cols, struct cuda_matrix *m, int n,
                         struct err *e);
    /* l[cols, cols]: the lower triangle of L of matrix i, zero above it. */
    int (*factors_read)(const struct cuda_factors *f, int i, float *l,
                        struct err *e);
    void (*factors_free)(struct cuda_factors *f); /* NULL is allowed */

    /* Codes of n modules of one shape by the factors of the same numbers. */
    int (*solve)(struct cuda_context *c, const struct solve_params *p,
                 const struct cuda_factors *f, struct cuda_module *m, int n,
                 struct err *e);

    /* As grid_backend.search. */
    int (*grid)(struct cuda_context *c, const struct grid_params *p,
                const void *w, uint32_t *meta, struct err *e);

    int (*pack)(struct cuda_context *c, const struct cuda_pack *p,
                struct err *e);
};

/* The plug-in's only symbol, and its type. */
#define FORGE_CUDA_SYMBOL "forge_cuda_api"
typedef const struct forge_cuda *forge_cuda_fn(void);

#endif
