/* tile.c - see w4a16.h: computes a tile in the calling thread.
 *
 * More than W4_FEW rows: a block of W (a tile's outputs, a kernel's depth of
 * inputs) is dequantized into memory that stays in the second-level cache, and
 * all rows of the tile are multiplied with it.  For bf16 it has the form of
 * bf16_gemm.h's panels, so results are equal to the bit to a product with W in
 * bf16; otherwise it is f32 for OpenBLAS. */
#include <string.h>

#include "common/math/bf16_gemm.h"
#include "common/math/blas.h"
#include "w4a16/kernels.h"

enum {
    F32_TILE = 256,    /* rows and outputs of an f32 tile, whatever the number
                      * of threads */
    F32_DEPTH = 256,   /* inputs of a block */
    FEW_COLS = 2048,   /* outputs of a tile of up to W4_FEW rows */
    OUTPUT_COLS = 512, /* the same of W4_BY_OUTPUT, which has no parts */
    AWQ_COLS = 32768 /* the same of W4_AWQ: whole rows of words, if possible */
};

struct w4_tiles w4_tiles(const struct w4_x *x)
{
    const struct bf16_kernel *k = bf16_kernel();
    enum w4_form form = x->w->form;
    int64_t few = form == W4_AWQ       ? AWQ_COLS :
                  form == W4_BY_OUTPUT ? OUTPUT_COLS :
                                         FEW_COLS;
    struct w4_tiles t = { W4_FEW, few, sizeof(float) * W4_FEW * (size_t)few };

    if (x->rows > W4_FEW && x->type == DT_F32)
        t = (struct w4_tiles){ F32_TILE, F32_TILE,
                               sizeof(float) * F32_TILE * F32_DEPTH };
    else if (x->rows >
             W4_FEW) /* twice the rows: W is dequantized half as often */
        t = (struct w4_tiles){ (x->strips ? 1 : 2) * k->tile_rows, k->tile_cols,
                               sizeof(uint16_t) *
                                   (size_t)(k->tile_cols * (k->depth + 8)) };
    return t;
}

/* Rows of W4_AWQ's words of W4_BLOCK outputs, a line each, which would share few sets of the
 * cache where they are, and be read eight times. */
struct lines {
    uint32_t row[KERNEL_DEPTH_MAX + 8][W4_BLOCK / 8];
};

/* Words of output o and place k. */
static const uint32_t *words_at(const struct forge_w4a16 *w, int64_t o,
                                int64_t k)
{
    switch (w->form) {
    case W4_BY_OUTPUT: return w->codes + o * w->stride + k / 8;
    case W4_BY_INPUT: return w->codes + k / 8 * w->stride + o;
    case W4_AWQ: break;
    }
    return w->codes + k * w->stride + o / 8;
}

/* The kernel, for the outputs of a tile, o..o+n-1, from its first ones on; lines: kept for
 * the others.  The words that are asked for are those that come next but one, of W4_AWQ
 * next: the tile's first ones, of the next block of inputs, follow its last ones. */
static void make_values(struct w4_values *j, int64_t o, int64_t n,
                        struct lines *lines)
{
    const struct forge_w4a16 *w = j->w;
    int64_t in = j->o % W4_BLOCK, left = (w->rows - j->o) / 8;
    int64_t rows = w->depth - j->k < j->n ? w->depth - j->k : j->n;
    const uint32_t *from = words_at(w, j->o, j->k);
    int64_t next =
        w->form == W4_AWQ ? j->o - in + W4_BLOCK : j->o + 2 * W4_LANES;

    j->ahead = next < o + n ? words_at(w, next, j->k) :
                              words_at(w, next - n, j->k + j->n);
    if (w->form == W4_AWQ) {
        for (int64_t r = 0; r < rows && !in; r++, from += w->stride)
            if (left >= W4_BLOCK / 8)
                memcpy(lines->row[r], from, sizeof(lines->row[r]));
            else
                memcpy(lines->row[r], from, (size_t)left * sizeof(*from));
        j->words = lines->row[0] + in / 8;
        j->stride = W4_BLOCK / 8;
    }
    w4_kernels()->values(j);
}

/* Dequantize inputs k..k+len-1 of outputs o..o+rows-1 into packed panels.
 * Places come in eights: surplus ones land in the next panel, which is written
 * later, or in the spare room at the end. */
static void make_panels(const struct forge_w4a16 *w, int64_t o, int64_t rows,
                        int64_t k, int64_t len, uint16_t *to)
{
    int64_t depth = bf16_gemm_depth(len);
    struct lines lines;

    for (int64_t i = 0; i < rows; i += W4_LANES)
        make_values(
            &(struct w4_values){ .w = w,
                                 .o = o + i,
                                 .k = k,
                                 .n = (depth + 7) / 8 * 8,
                                 .pairs = to +
                                          i / GEMM_COLS * GEMM_COLS * depth +
                                          i % GEMM_COLS * 2 },
            o, rows, &lines);
    /* zero the second half of the last panel */
    if ((rows + W4_LANES - 1) / W4_LANES % 2) {
        uint16_t *half =
            to + rows / GEMM_COLS * GEMM_COLS * depth + 2 * W4_LANES;

        for (int64_t t = 0; t < depth / 2; t++)
            memset(half + t * 2 * GEMM_COLS, 0, 4 * W4_LANES);
    }
}

static void tile_bf16(const struct w4_x *x, int64_t r, int64_t m, int64_t o,
                      int64_t n, float *y, int64_t ldy, uint16_t *panels)
{
    const struct forge_w4a16 *w = x->w;
    int64_t depth = bf16_kernel()->depth, all = bf16_gemm_depth(w->depth), len;
    const uint16_t *strips = x->strips ? x->strips + r * all : NULL;

    for (int64_t k = 0; k < w->depth; k += len) {
        int64_t left = w->depth - k;

        len = left < depth ? left : depth;
        make_panels(w, o, n, k, len, panels);
        bf16_gemm(&(struct bf16_gemm){
            .x = (const uint16_t *)x->p + r * x->ld + k,
            .ldx = x->ld,
            .m = m,
            .k = len,
            .packed = panels,
            .all = n,
            .n = n,
            .y = y,
            .ldy = ldy,
            .continues = k > 0,
            .strips = strips ? strips + k * GEMM_STRIP : NULL,
            .strip_depth = all });
    }
}

static void tile_f32(const struct w4_x *x, int64_t r, int64_t m, int64_t o,
                     int64_t n, float *y, int64_t ldy, float *values)
{
    const struct forge_w4a16 *w = x->w;
    int64_t ld = F32_TILE;
    struct lines lines;

    for (int64_t k = 0; k < w->depth; k += F32_DEPTH) {
        int64_t len = w->depth - k < F32_DEPTH ? w->depth - k : F32_DEPTH;

        for (int64_t i = 0; i < n; i += W4_LANES)
            make_values(&(struct w4_values){ .w = w,
                                             .o = o + i,
                                             .k = k,
                                             .n = (len + 7) / 8 * 8,
                                             .floats = values + i,
                                             .ld = ld },
                        o, n, &lines);
        blas_sgemm(&(struct sgemm){ .m = m,
                                    .n = n,
                                    .k = len,
                                    .a = (const float *)x->p + r * x->ld + k,
                                    .lda = x->ld,
                                    .b = values,
                                    .ldb = ld,
                                    .beta = k > 0,
                                    .c = y,
                                    .ldc = ldy });
    }
}

/* f's outputs of rows r.., of a part. */
static void few_tile(const struct w4_x *x, int64_t part, struct w4_few f,
                     int64_t r)
{
    f.w = x->w;
    f.x = x->fixed + r;
    f.digits = x->digits;
    f.sums = x->sums + r * x->w->groups;
    f.piece = part * W4_PART;
    f.pieces = W4_PART;
    f.awq = w4_awq(x->digits, f.n);
    f.near = w4_near();
    w4_kernels()->few(&f);
}

void w4_tile(const struct w4_x *x, int64_t r, int64_t m, int64_t o, int64_t n,
             float *y, int64_t ldy, void *room)
{
    if (x->rows > W4_FEW) {
        if (x->type == DT_BF16)
            tile_bf16(x, r, m, o, n, y, ldy, room);
        else
            tile_f32(x, r, m, o, n, y, ldy, room);
        return;
    }
    few_tile(x, 0,
             (struct w4_few){ .m = m, .first = o, .n = n, .y = y, .ldy = ldy },
             r);
    for (int64_t part = 1; part < w4_parts(x); part++) {
        float *sums = room;

        few_tile(
            x, part,
            (struct w4_few){ .m = m, .first = o, .n = n, .y = sums, .ldy = n },
            r);
        for (int64_t i = 0; i < m; i++)
            for (int64_t c = 0; c < n; c++)
                y[i * ldy + c] += sums[i * n + c];
    }
}

int64_t w4_parts(const struct w4_x *x)
{
    return x->rows > W4_FEW || x->w->form == W4_BY_OUTPUT ?
               1 :
               (x->pieces + W4_PART - 1) / W4_PART;
}

void w4_part(const struct w4_x *x, int64_t part, int64_t o, int64_t n, float *y,
             int64_t ldy)
{
    few_tile(
        x, part,
        (struct w4_few){ .m = x->rows, .first = o, .n = n, .y = y, .ldy = ldy },
        0);
}
