/* w4a16.h - products of rows with a 4-bit linear, tile by tile, in the
 * caller's threads: what forge_w4a16.h is made of, for the forward pass.
 *
 *     w[o][k] = (q[o][k] - z[o][g]) * s[o][g]
 *     y[r][o] = sum over k of x[r][k] * w[o][k] */
#ifndef FORGE_W4A16_INTERNAL_H
#define FORGE_W4A16_INTERNAL_H

#include "common/base.h"
#include "common/math/dtype.h"
#include "forge_w4a16.h"

enum {
    W4_LANES = 16, /* lanes of a sum, equal at all CPU levels */
    W4_RUN = 128,  /* inputs of 16 words */
    W4_PIECE = 32, /* most inputs that are summed as integers */
    W4_PART = 16,  /* pieces of a part: sums of parts are added in order */
    W4_BLOCK =
        128, /* outputs of a tile are a multiple of it: 16 words of AWQ */
    W4_FEW = FORGE_W4A16_FEW /* rows of x up to which codes are used
                              * directly; more: W is dequantized to bf16 or
                              * f32 block by block */
};

/* Arrangement of the words. */
enum w4_form {
    W4_BY_OUTPUT, /* [O, depth/8]: compressed-tensors */
    W4_BY_INPUT,  /* [depth/8, O]: GPTQ, and reordered codes */
    W4_AWQ        /* [I, O/8] */
};

/* A prepared linear.  Inputs have places: their positions along the words.
 * The place of an input is its index, unless codes are reordered, because of
 * an act-order g_idx or of groups that are not a multiple of 8: then the
 * inputs of a group are brought together and each group is padded to whole
 * words. */
struct forge_w4a16 {
    enum w4_form form;
    int64_t rows, cols;    /* O, I */
    int64_t depth;         /* number of places; = cols unless reordered */
    int64_t groups, group; /* number of groups; inputs of a group */
    int64_t *first;        /* [groups + 1] first place of each group */
    const uint32_t *codes; /* rows of words, `stride` words apart; borrowed,
                            * unless `own` */
    int64_t stride, pitch; /* pitch: from a group's scales to the next's, but of
                            * W4_BY_OUTPUT */
    int32_t *input; /* [depth] input at a place, -1: padding; NULL: identity */
    /* [groups * O], indexed by w4_at(): s, as stored, and z - 8; zero is NULL if every
     * zero is 8. */
    void *scale;
    enum dtype scale_type; /* DT_F32, DT_F16 or DT_BF16 */
    int8_t *zero;
    /* W4_BY_OUTPUT only.  base [blocks]: group of the first of 16 words; delta
     * [blocks, 16]: group of each word minus base; NULL: always 0. */
    int32_t *base, *delta;
    void *own; /* memory to free: reordered codes, or those of w4_own_codes() */
    size_t bytes; /* memory held besides the caller's codes */
};

/* Position of nibble j of a word of AWQ among outputs in the order of their scales:
 * in blocks of 16 words, what byte products give of them. */
static inline int64_t w4_awq_at(int64_t word, int j)
{
    return word / 16 * W4_BLOCK + (word % 4 * 2 + j % 2) * 16 +
           word % 16 / 4 * 4 + j / 2;
}

/* Index of the scale of group g, output o. */
static inline int64_t w4_at(const struct forge_w4a16 *w, int64_t g, int64_t o)
{
    static const unsigned char nibble[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };

    if (w->form == W4_BY_OUTPUT)
        return o * w->groups + g;
    if (w->form == W4_BY_INPUT)
        return g * w->pitch + o;
    return g * w->pitch + w4_awq_at(o / 8, nibble[o % 8]);
}

/* The scale of index i. */
static inline float w4_scale(const struct forge_w4a16 *w, int64_t i)
{
    const uint16_t *half = (const uint16_t *)w->scale;

    return w->scale_type == DT_F32 ? ((const float *)w->scale)[i] :
           w->scale_type == DT_F16 ? f32_from_f16(half[i]) :
                                     f32_from_bf16(half[i]);
}

/* A row of x as integers, x = fixed * unit, unit a power of two, |fixed| <= 2^22, or
 * with two digits 2^14: in pieces of up to W4_PIECE inputs of a group, or of 16 words
 * (W4_BY_OUTPUT).  Of W4_AWQ with two digits W4_RUN inputs of a group have one unit.
 * Places of a piece that are no inputs are 0. */
struct w4_fixed {
    /* [pieces, places of a piece]; of W4_BY_OUTPUT [pieces, 8, 16]: nibble j of 16
     * words side by side */
    int32_t *fixed;
    /* [digits, pieces, places], dimension 0 ld apart: digits of base 256, -128..127, lowest
     * first; even inputs of each word, then odd ones (W4_BY_INPUT), even ones of all
     * words, then odd ones (W4_BY_OUTPUT), in order (W4_AWQ), or, of W4_AWQ where
     * kernels.h says so, three digits of each two inputs twice, and two digits as one
     * number of 16 bits */
    int8_t *digit;
    int64_t ld;
    float *unit; /* [pieces] */
    /* -8 times the sum of fixed: [pieces], or of each word [pieces, 16] */
    int32_t *base;
};

/* As forge_w4a16_prepare(); release by forge_w4a16_release(). */
MUST_CHECK int w4_prepare(struct forge_w4a16 **w,
                          const struct forge_w4a16_linear *l, struct err *e);
/* Give the codes' memory p (malloced) to w, which frees it, at once if it
 * holds a reordered copy. */
void w4_own_codes(struct forge_w4a16 *w, void *p);

/* ---- shapes and orders of inputs, on any device ---- */

/* E_CONFIG: the layout cannot have this shape, or a NULL pointer. */
MUST_CHECK int w4_check(const struct forge_w4a16_linear *l, struct err *e);

/* Which group an input belongs to: g_idx[k], or k / group if g_idx is NULL. */
struct w4_order {
    const int32_t *g_idx; /* [cols], or NULL */
    int64_t cols, group, groups;
};
/* g_idx: the linear's, wherever that is; NULL for AWQ. */
struct w4_order w4_order(const struct forge_w4a16_linear *l);
/* Sets o->g_idx = NULL unless it assigns inputs to groups in another order than
 * k / group.  E_DATA: an entry is not a group. */
MUST_CHECK int w4_order_check(struct w4_order *o, struct err *e);
/* Assign places: the inputs of a group together, each group padded to a multiple
 * of `unit` places.  first [groups + 1]: first place of each group, then their
 * number; *input, to be freed: the input at each place, -1: padding.  E_TEMP. */
MUST_CHECK int w4_sort(const struct w4_order *o, int64_t unit, int64_t *first,
                       int32_t **input, struct err *e);

/* ---- a product ---- */

/* Number of rows of an expert, first[0]..first[1]-1.  E_CONFIG: negative, out of
 * order or 2^31 or more, or rows of an expert that is not there. */
MUST_CHECK int64_t w4_expert_rows(const int64_t *first, bool there,
                                  struct err *e);
/* E_CONFIG: rows 0..end-1 of r, of `cols` elements, are NULL, have no such number or
 * type, or overlap.  name: "x" or "y". */
MUST_CHECK int w4_rows_check(const struct forge_w4a16_rows *r, const char *name,
                             int64_t end, int64_t cols, struct err *e);

/* Rows of x in the form that the kernels read. */
struct w4_x {
    const struct forge_w4a16 *w;
    int64_t rows;
    enum dtype type; /* of p: DT_F32 or DT_BF16 */
    const void
        *p; /* [rows, ld]; the caller's x, or own; NULL: up to W4_FEW rows */
    int64_t ld;
    uint16_t *strips;              /* bf16_gemm.h's, of all places, or NULL */
    struct w4_fixed fixed[W4_FEW]; /* of a row each */
    int digits;                    /* of these: 3 of x of DT_F32, else 2 */
    bool pairs;                    /* these digits are in pairs */
    int64_t pieces;
    float *sums; /* up to W4_FEW rows: [rows, groups] sums of x over groups */
    void *own;   /* memory of p or sums; NULL: none; of strips another */
    bool shares; /* both are another's */
};

/* x [rows, ld] of DT_F32, DT_F16 or DT_BF16, row-major; borrowed until
 * w4_x_release().  E_TEMP; E_CONFIG: OpenBLAS is needed and missing. */
MUST_CHECK int w4_x_prepare(struct w4_x *to, const struct forge_w4a16 *w,
                            const void *x, enum dtype type, int64_t ld,
                            int64_t rows, struct err *e);
/* *to = the rows that *from has, for w, which has as many inputs: false where w needs
 * them in another form.  *from's memory is used until its w4_x_release(). */
bool w4_x_share(struct w4_x *to, const struct w4_x *from,
                const struct forge_w4a16 *w);
void w4_x_release(struct w4_x *x);

/* Sizes of tiles, and the bytes of work memory for one. */
struct w4_tiles {
    int64_t rows, cols;
    size_t room; /* bytes */
};
/* The sizes that suit x and this CPU. */
struct w4_tiles w4_tiles(const struct w4_x *x);
/* In the calling thread: y [m, n], leading dimension ldy, = rows r..r+m-1 of x
 * times outputs o..o+n-1 of W.  o is a multiple of W4_BLOCK, but with up to W4_FEW
 * rows of W4_BY_OUTPUT; m and n are at most those of w4_tiles(); room: its work
 * memory, 64-aligned. */
void w4_tile(const struct w4_x *x, int64_t r, int64_t m, int64_t o, int64_t n,
             float *y, int64_t ldy, void *room);

/* forge_w4a16_several(). */
MUST_CHECK int w4_several(const struct forge_w4a16 *const *w, int64_t n,
                          const struct forge_w4a16_rows *x, int64_t rows,
                          const struct forge_w4a16_rows *y, struct err *e);

/* Number of parts of inputs that can be summed apart: 1 with more than W4_FEW rows. */
int64_t w4_parts(const struct w4_x *x);
/* As w4_tile() of all rows x, which has several parts, but y = the sums of one part;
 * w4_tile() is these, added from the first to the last. */
void w4_part(const struct w4_x *x, int64_t part, int64_t o, int64_t n, float *y,
             int64_t ldy);

#endif
