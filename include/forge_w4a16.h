/* forge_w4a16.h - y = x Wᵀ on the CPU with W in 4 bits, read as it is stored
 * in a checkpoint.
 *
 * W has O outputs and I inputs: w[o][k] = (q[o][k] - z[o][g]) * s[o][g], where
 * g is the group of input k.  Codes q are read in place; only with an
 * act-order g_idx, or groups that are not a multiple of 8 (but AWQ's), a copy
 * is made in which the inputs of a group are together and fill whole words.
 * Scales are copied as they are, 2 or 4 bytes per group and output, zeros to a byte
 * each if there are others than 8.
 *
 * A row of y depends on its row of x, on W, on whether the call has more than
 * FORGE_W4A16_FEW rows, and on the CPU level; not on the number of threads or
 * on other rows.
 *
 * Up to FORGE_W4A16_FEW rows: weights are exact; x is taken in pieces, whose sums
 * are added in f32, equal to the bit at all CPU levels.  A piece is 128 inputs of
 * compressed-tensors, and of AWQ if x is bf16 or f16, else up to 32 inputs.  With p
 * a power of two above all inputs of a piece, x is rounded to multiples of 2^-14 p
 * (bf16, f16) or 2^-22 p (f32): bf16 above 2^-7 p and f16 above 2^-4 p are exact.  y
 * is NaN if x is not finite.
 * More rows: x of bf16 is multiplied with weights rounded to bf16, sums in
 * f32; x of f16 or f32 with f32 weights by OpenBLAS, which is opened then.
 *
 * Functions return 0, or minus the sysexits(3) code of the failure and one
 * line in why[why_size]; why may be NULL. */
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

/* Rows up to which a product reads the codes directly, without dequantizing
 * W. */
enum { FORGE_W4A16_FEW = 4 };

/* Layouts of the tensors; G groups.  Words are little-endian u32, nibble j is
 * bits 4j to 4j+3; details in forge-layouts(5). */
enum forge_w4a16_layout {
    /* codes [O, ceil(I/8)]: a word has eight inputs of an output; zeros
     * [ceil(O/8), G]; scales [O, G] */
    FORGE_W4A16_COMPRESSED_TENSORS,
    /* version gemm.  codes [I, O/8]: a word has outputs 8c + (0 2 4 6 1 3 5
     * 7); zeros [G, O/8] likewise; scales [G, O] */
    FORGE_W4A16_AWQ,
    /* codes [ceil(I/8), O]: a word has eight inputs of an output; zeros [G,
     * ceil(O/8)], stored minus 1; scales [G, O] */
    FORGE_W4A16_GPTQ,
    FORGE_W4A16_GPTQ_V2 /* as GPTQ, but zeros are stored as they are */
};

/* Element types of x, y and scales. */
enum forge_w4a16_type {
    FORGE_W4A16_F32 = 1,
    FORGE_W4A16_F16 = 2,
    FORGE_W4A16_BF16 = 3
};

/* The tensors of a linear, as stored in the file.  G = ceil(I / group). */
struct forge_w4a16_linear {
    enum forge_w4a16_layout layout;
    int64_t outputs, inputs;
    int64_t group;         /* inputs per scale; 0: all, one group */
    const uint32_t *codes; /* borrowed until forge_w4a16_release(); the
                            * others only during forge_w4a16_prepare() */
    const void *scales;
    enum forge_w4a16_type scale_type;
    const uint32_t *zeros; /* NULL: every zero is 8 */
    const int32_t *g_idx;  /* [I] group of each input; NULL: k / group;
                            * ignored for AWQ */
};

/* A row-major matrix; its rows are ld elements apart. */
struct forge_w4a16_rows {
    enum forge_w4a16_type type;
    void *p;
    int64_t ld;
};

/* A linear prepared for products. */
struct forge_w4a16;

/* Prepare a linear; *w is released by forge_w4a16_release().  -78 (E_CONFIG):
 * the layout cannot have this shape, or a NULL pointer; -65 (E_DATA): a g_idx
 * out of range, or a scale that is not finite; -75 (E_TEMP): no memory. */
FORGE_W4A16_API int forge_w4a16_prepare(struct forge_w4a16 **w,
                                        const struct forge_w4a16_linear *l,
                                        char *why, size_t why_size);
FORGE_W4A16_API void forge_w4a16_release(struct forge_w4a16 *w); /* or NULL */
/* Bytes that w holds besides the caller's codes; 0 of NULL. */
FORGE_W4A16_API size_t forge_w4a16_memory(const struct forge_w4a16 *w);

/* y[rows, O] = x[rows, I] Wᵀ.  y must not overlap x.  -75: no memory; -78: an
 * unknown type, a negative number of rows, several rows less than I (of x) or O (of y)
 * elements apart, or more than FORGE_W4A16_FEW rows of f16 or f32 without
 * OpenBLAS. */
FORGE_W4A16_API int forge_w4a16_multiply(const struct forge_w4a16 *w,
                                         const struct forge_w4a16_rows *x,
                                         int64_t rows,
                                         const struct forge_w4a16_rows *y,
                                         char *why, size_t why_size);
/* The same for experts of one shape, in one call: rows first[e]..first[e+1]-1
 * of x and y belong to w[e], e < experts, which may be NULL if it has no rows.
 * first [experts + 1].  -78 also: a negative number of experts, ranges that are
 * negative or out of order, shapes that differ. */
FORGE_W4A16_API int forge_w4a16_grouped(const struct forge_w4a16 *const *w,
                                        const int64_t *first, int64_t experts,
                                        const struct forge_w4a16_rows *x,
                                        const struct forge_w4a16_rows *y,
                                        char *why, size_t why_size);
/* y[i] = x W[i]ᵀ of n linears with the same inputs, such as q, k and v: as n calls
 * of forge_w4a16_multiply(), to the bit, but x is prepared once, and small linears
 * keep all threads busy together.  -78 also: a negative n, inputs that differ in
 * number. */
FORGE_W4A16_API int forge_w4a16_several(const struct forge_w4a16 *const *w,
                                        int64_t n,
                                        const struct forge_w4a16_rows *x,
                                        int64_t rows,
                                        const struct forge_w4a16_rows *y,
                                        char *why, size_t why_size);

/* Number of threads of all calls; 0: as many as the process may run on.  Call
 * it once, before the first product.  Calls must come from one thread at a
 * time, which works like the others and wants 256 KiB of stack. */
FORGE_W4A16_API void forge_w4a16_threads(int n);

#ifdef __cplusplus
}
#endif

#endif
