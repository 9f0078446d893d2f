/* forge_w4a16.h - y = x Wᵀ with W in 4 bits, read as it lies in a checkpoint.
 *
 * W has O outputs and I inputs, w[o][k] = (q[o][k] - z[o][g]) * s[o][g], where
 * g is the group of input k.  Codes q are never copied, but for an act-order
 * g_idx, whose inputs are brought together group by group; scales and zeros are
 * turned into floats, 4 bytes a group of an output, 8 where there are zeros.
 *
 * Results depend on the row of x, on W, on whether a call has more than
 * FORGE_W4A16_FEW rows, and on the level of CPU; never on threads or on the
 * rows beside.  Few rows: exact weights, sums in f32.  More rows: of bf16 by
 * products of bf16, so weights are rounded to it, sums in f32; of f16 and f32
 * by products of f32, for which OpenBLAS is opened.
 *
 * Functions return 0, or what sysexits(3) calls the failure, negative, with one
 * line in `why`, which may be NULL. */
#ifndef FORGE_W4A16_H
#define FORGE_W4A16_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FORGE_W4A16_API __attribute__((visibility("default")))
#else
#define FORGE_W4A16_API
#endif

enum { FORGE_W4A16_FEW = 4 };

/* Words are little-endian; nibble j is bits 4j to 4j+3 (forge-layouts(5)). */
enum forge_w4a16_layout {
    /* codes [O][ceil(I/8)]: eight inputs of an output; zeros [ceil(O/8)][G];
     * scales [O][G] */
    FORGE_W4A16_COMPRESSED_TENSORS,
    /* codes [I][O/8]: outputs 8c + 0 2 4 6 1 3 5 7, zeros [G][O/8] likewise;
     * scales [G][O]; version gemm */
    FORGE_W4A16_AWQ,
    /* codes [ceil(I/8)][O]: eight inputs of an output; zeros [G][ceil(O/8)],
     * less one; scales [G][O] */
    FORGE_W4A16_GPTQ,
    FORGE_W4A16_GPTQ_V2 /* zeros as they are */
};

enum forge_w4a16_type {
    FORGE_W4A16_F32 = 1,
    FORGE_W4A16_F16 = 2,
    FORGE_W4A16_BF16 = 3
};

/* A linear's tensors, as they lie in the file.  G = ceil(I / group). */
struct forge_w4a16_linear {
    enum forge_w4a16_layout layout;
    int64_t outputs, inputs;
    int64_t group;         /* inputs of a scale; 0: all, one group */
    const uint32_t *codes; /* stay the caller's, until release */
    const void *scales;
    enum forge_w4a16_type scale_type;
    const uint32_t *zeros; /* NULL: 8 everywhere */
    const int32_t *g_idx;  /* [I] group of each input; NULL: k / group */
};

/* Rows of numbers, ld elements apart. */
struct forge_w4a16_rows {
    enum forge_w4a16_type type;
    void *p;
    int64_t ld;
};

struct forge_w4a16;

/* -78: a shape that the layout does not hold; -65: a g_idx out of range, or a
 * scale that is not finite; -75: no memory. */
FORGE_W4A16_API int forge_w4a16_prepare(struct forge_w4a16 **w,
                                        const struct forge_w4a16_linear *l,
                                        char *why, size_t why_size);
FORGE_W4A16_API void forge_w4a16_release(struct forge_w4a16 *w); /* or NULL */
/* Bytes that it holds beside the caller's codes. */
FORGE_W4A16_API size_t forge_w4a16_memory(const struct forge_w4a16 *w);

/* y[rows, O] = x[rows, I] Wᵀ.  x is read alone; -75: no memory; -78: more than
 * few rows of f16 or f32, and no OpenBLAS here. */
FORGE_W4A16_API int forge_w4a16_multiply(const struct forge_w4a16 *w,
                                         const struct forge_w4a16_rows *x,
                                         int64_t rows,
                                         const struct forge_w4a16_rows *y,
                                         char *why, size_t why_size);
/* The same for experts of one shape: rows first[e] .. first[e+1]-1 of x and y
 * are those of w[e], which may be NULL where there are none. */
FORGE_W4A16_API int forge_w4a16_grouped(const struct forge_w4a16 *const *w,
                                        const int64_t *first, int64_t experts,
                                        const struct forge_w4a16_rows *x,
                                        const struct forge_w4a16_rows *y,
                                        char *why, size_t why_size);

/* Threads of all calls; 0: as many as the process may run on.  Once, before the
 * first product; calls are for one thread at a time. */
FORGE_W4A16_API void forge_w4a16_threads(int n);

#ifdef __cplusplus
}
#endif

#endif
