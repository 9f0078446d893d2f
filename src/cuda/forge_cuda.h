/* forge_cuda.h - what the plug-in forge-cuda.so offers: one table of functions.
 *
 * The tools open it at run time (device/plugin.h), so that one build runs on
 * machines with and without a GPU.  All pointers are the host's; matrices are
 * row-major and dense.  A context is one device, one stream, one thread at a
 * time.  Every function returns 0 or fills *e:
 *     E_DEVICE  the device or a library of CUDA failed
 *     E_TEMP    out of GPU or host memory
 *     E_DATA    as the CPU's function of the same kind says
 *     E_CONFIG  the GPU cannot do it, the CPU may
 *
 * Grids and packed words are equal to the CPU's to the bit.  Hessians, factors
 * and codes differ by the order of sums alone. */
#ifndef FORGE_CUDA_H
#define FORGE_CUDA_H

#include "gptq/grid/grid.h"
#include "gptq/solve/solve_refined.h"
#include "hessian/hessian.h"
#include "layout/layout.h"

enum { FORGE_CUDA_VERSION = 6 };

struct cuda_context;
struct cuda_hessian;
struct cuda_factors;

/* The tokens of one of several inputs of one width. */
struct cuda_tokens {
    const void *x;   /* [tokens, cols], bf16 and finite */
    uint64_t tokens; /* with none h is zero */
    float *h;        /* out: packed lower triangle, see hessian.h */
};

/* One matrix of a batch of equal size, and what became of it. */
struct cuda_matrix {
    const float *h;        /* packed lower triangle, see hessian.h */
    const uint32_t *input; /* [cols]: as struct factor has it */
    const bool *dead;      /* [cols]: of column c of the factor */
    double mean;           /* of the live diagonal */
    double damping;        /* the first that is tried, as a part of mean */
    bool whole;            /* H is kept, for solve_refined() and for nothing
                                   else; the same in all of a batch */
    bool alone;            /* the factor is that of a batch of one to the
                                   bit; otherwise that is faster for many small
                                   ones; the same in all of a batch */
    double lambda;         /* out: what was added to the diagonal */
    double tried[FACTOR_TRIES]; /* out */
    int n_tried;                /* out */
    bool failed;                /* out: no damping helped */
    bool bad;                   /* out, then failed too: h is not finite */
};

/* One weight matrix of a batch. */
struct cuda_module {
    const void *w;              /* [rows, cols] of params.dtype */
    const uint32_t *meta;       /* [rows, ceil(cols/group)] */
    uint32_t *searched;         /* out, of quantize() alone: as meta */
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

/* Weights of checkpoints of DeepSeek's kind: e4m3 with a scale for every
 * block of `block` x `block`; out = bf16(f32(w) * scale). */
struct cuda_fp8 {
    uint64_t rows, cols, block; /* cols and block: multiples of 8 */
    const uint8_t *w;           /* [rows, cols] */
    const float *scale;         /* [ceil(rows/block), ceil(cols/block)] */
    uint16_t *out;              /* [rows, cols], bf16 */
};

enum { CUDA_SETS = 2 };

/* What is done with the linears of a batch: grids searched, codes solved and
 * packed, without coming back to the host in between. */
struct cuda_quantize {
    struct grid_params grid; /* rows, cols, group and dtypes of all */
    enum layout layout;      /* of the words */
    int sets;                /* weight matrices that share a Hessian (gate and
                                up), 1..CUDA_SETS */
    int batch;               /* Hessians at a time, at most */
    bool compare;            /* also the loss of round-to-nearest */
};

/* The linears of one Hessian. */
struct cuda_linear {
    struct {
        const void *w;  /* [rows, cols] of grid.dtype */
        uint32_t *meta; /* out: [rows, ceil(cols/group)] */
        uint32_t *out;  /* out: words of the layout, rows * cols / 8 */
        struct solve_result result; /* out */
    } set[CUDA_SETS];
};

/* What a context's stream is busy with; waiting is for the host. */
enum cuda_part {
    CUDA_WAITING,
    CUDA_TRANSFER,
    CUDA_FACTOR,
    CUDA_GRID,
    CUDA_SOLVE,
    CUDA_PACK,
    CUDA_PARTS
};

struct forge_cuda {
    uint32_t version; /* FORGE_CUDA_VERSION, or this header does not fit */

    /* Number of devices that can be used; 0 when there is no driver. */
    int (*count)(void);
    /* memory: bytes of buffers that may be held, 0: what there is (what the
     * libraries take for themselves is not counted). */
    int (*open)(struct cuda_context **c, int device, uint64_t memory,
                struct err *e);
    const char *(*name)(const struct cuda_context *c);
    uint64_t (*most)(const struct cuda_context *c); /* bytes held so far */
    /* Seconds of each part of quantize() since the last call; the first call
     * begins to count. */
    int (*parts)(struct cuda_context *c, double seconds[CUDA_PARTS],
                 struct err *e);
    void (*close)(struct cuda_context *c); /* NULL is allowed */
    /* Pinned host memory; without it everything works as well, but copies
     * take the processor's time. */
    int (*host_alloc)(void **p, size_t n, struct err *e);
    void (*host_free)(void *p);

    /* As hessian_open(), _add() and _finish(), for bf16 tokens that are
     * finite: the caller has looked at them all on their way. */
    int (*hessian_open)(struct cuda_hessian **h, struct cuda_context *c,
                        const struct hessian_shape *s, struct err *e);
    int (*hessian_add)(struct cuda_hessian *h, const void *x, uint64_t tokens,
                       struct err *e);
    int (*hessian_finish)(struct cuda_hessian *h, float *out, struct err *e);
    void (*hessian_close)(struct cuda_hessian *h); /* NULL is allowed */
    /* The Hessians of n inputs, such as a layer's experts, whatever their
     * numbers of tokens, in one launch; when memory ends, in several.
     * E_CONFIG: cols is no multiple of 8. */
    int (*hessians)(struct cuda_context *c, uint64_t cols,
                    const struct cuda_tokens *t, int n, struct err *e);

    /* Factor n matrices of one size.  0 also when some of them failed: each
     * says so itself.  E_TEMP, of solve() too: all room but that of factors and
     * Hessians has been given back, so that fewer at a time may fit. */
    int (*factors_build)(struct cuda_factors **f, struct cuda_context *c,
                         uint64_t cols, struct cuda_matrix *m, int n,
                         struct err *e);
    /* For solve_refined(): E[cols, cols] of target.h, inputs as stored; NULL:
     * there is none any more. */
    int (*factors_drift)(struct cuda_factors *f, const float *drift,
                         struct err *e);
    /* l[cols, cols]: the lower triangle of L of matrix i, zero above it. */
    int (*factors_read)(const struct cuda_factors *f, int i, float *l,
                        struct err *e);
    void (*factors_free)(struct cuda_factors *f); /* NULL is allowed */

    /* Codes of n modules of one shape, each by the factor of its number; with
     * fewer factors equally many modules in a row share one. */
    int (*solve)(struct cuda_context *c, const struct solve_params *p,
                 const struct cuda_factors *f, struct cuda_module *m, int n,
                 struct err *e);

    /* As refined_solve(), by factors of one whole matrix each (b->factor[i]->gpu).
     * A group has 128 inputs at most. */
    int (*solve_refined)(struct cuda_context *c, const struct refined_params *p,
                         const struct refined_hessian *b, const void *w,
                         uint32_t *meta, uint8_t *codes,
                         struct refined_result *r, struct err *e);

    /* Factor, grid, solve and pack for n Hessians; when memory ends, with half
     * as many at a time.  E_DATA: a Hessian could not be factored (h says
     * which), or weights are not finite. */
    int (*quantize)(struct cuda_context *c, const struct cuda_quantize *p,
                    struct cuda_matrix *h, struct cuda_linear *l, int n,
                    struct err *e);

    /* As grid_backend.search. */
    int (*grid)(struct cuda_context *c, const struct grid_params *p,
                const void *w, uint32_t *meta, struct err *e);

    int (*pack)(struct cuda_context *c, const struct cuda_pack *p,
                struct err *e);
    int (*dequantize)(struct cuda_context *c, const struct cuda_fp8 *p,
                      struct err *e);
};

/* The plug-in's only symbol, and its type. */
#define FORGE_CUDA_SYMBOL "forge_cuda_api"
typedef const struct forge_cuda *forge_cuda_fn(void);

#endif
