/* w4a16.h - the inside of forge_w4a16.h, for the forward pass: products of rows
 * with a 4-bit linear, tile by tile. */
#ifndef FORGE_W4A16_INTERNAL_H
#define FORGE_W4A16_INTERNAL_H

#include "common/base.h"
#include "common/math/dtype.h"
#include "forge_w4a16.h"

enum {
    W4_LANES = 16, /* of sums: the same at every level of CPU */
    W4_RUN = 128,  /* inputs whose sum is multiplied by a scale */
    W4_BLOCK =
        128, /* outputs of a tile are a multiple of it: 16 words of AWQ */
    W4_FEW = FORGE_W4A16_FEW
};

/* How words lie. */
enum w4_form {
    W4_BY_OUTPUT, /* [O][depth / 8]: compressed-tensors */
    W4_BY_INPUT,  /* [depth / 8][O]: GPTQ, and all with a g_idx */
    W4_AWQ        /* [I][O / 8] */
};

struct forge_w4a16 {
    enum w4_form form;
    int64_t rows, cols; /* O, I */
    int64_t depth;      /* places of inputs; cols, but for a g_idx */
    int64_t groups, group;
    int64_t *first;        /* [groups + 1]: a group's first place */
    const uint32_t *codes; /* rows of words stride apart */
    int64_t stride;
    int32_t *input; /* [depth] input at a place, -1: none; NULL: the same */
    /* By w4_at(): s, and s * (z - 8); shift is NULL where z is 8 everywhere. */
    float *scale, *shift;
    /* Of W4_BY_OUTPUT: the group of every 16th word, and how far the groups of
     * the words behind it are from that; far NULL: they are the same. */
    int32_t *base, *far;
    void *own;    /* codes that were reordered, or given away */
    size_t bytes; /* held beside the caller's codes */
};

/* Where a group's scale of an output is. */
static inline int64_t w4_at(const struct forge_w4a16 *w, int64_t g, int64_t o)
{
    static const unsigned char nibble[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };
    int64_t block = o / W4_BLOCK * W4_BLOCK, words;

    if (w->form == W4_BY_OUTPUT)
        return o * w->groups + g;
    if (w->form == W4_BY_INPUT)
        return g * w->rows + o;
    words = (w->rows - block < W4_BLOCK ? w->rows - block : W4_BLOCK) / 8;
    return g * w->rows + block + nibble[o % 8] * words + (o - block) / 8;
}

/* As forge_w4a16_prepare(). */
MUST_CHECK int w4_prepare(struct forge_w4a16 **w,
                          const struct forge_w4a16_linear *l, struct err *e);
/* Free `p` with it: the codes, which are then its own. */
void w4_give(struct forge_w4a16 *w, void *p);

/* ---- a product ---- */

/* Rows of x as kernels want them. */
struct w4_x {
    const struct forge_w4a16 *w;
    int64_t rows;
    enum dtype type; /* of many rows: DT_F32 or DT_BF16 */
    const void *p;
    int64_t ld;
    float *sums; /* of few: [rows, groups] */
    void *own;
};

/* type: DT_F32, DT_F16 or DT_BF16.  x stays in use until w4_x_release(). */
MUST_CHECK int w4_x_prepare(struct w4_x *to, const struct forge_w4a16 *w,
                            const void *x, enum dtype type, int64_t ld,
                            int64_t rows, struct err *e);
void w4_x_release(struct w4_x *x);

/* Sizes that are best for a tile, and the bytes that it works in. */
struct w4_tiles {
    int64_t rows, cols;
    size_t room;
};
struct w4_tiles w4_tiles(const struct w4_x *x);
/* In the calling thread: y[m, ldy] = rows r .. r+m-1 of x times outputs o ..
 * o+n-1; o is a multiple of W4_BLOCK, m and n are at most those of w4_tiles().
 * room: 64-aligned. */
void w4_tile(const struct w4_x *x, int64_t r, int64_t m, int64_t o, int64_t n,
             float *y, int64_t ldy, void *room);

#endif
