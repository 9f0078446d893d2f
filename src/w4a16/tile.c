/* tile.c - see w4a16.h: prepares rows of x, and computes a tile in the calling
 * thread.
 *
 * More than W4_FEW rows: a block of W (a tile's outputs, a kernel's depth of
 * inputs) is dequantized into memory that stays in the second-level cache, and
 * all rows of the tile are multiplied with it.  For bf16 it has the form of
 * bf16_gemm.h's panels, so results are equal to the bit to a product with W in
 * bf16; otherwise it is f32 for OpenBLAS. */
#include <stdlib.h>
#include <string.h>

#include "common/math/bf16_gemm.h"
#include "common/math/blas.h"
#include "common/math/threads.h"
#include "w4a16/kernels.h"

enum {
    F32_TILE = 256,  /* rows and outputs of an f32 tile, whatever the number
                      * of threads */
    F32_DEPTH = 256, /* inputs of a block */
    FEW_COLS = 2048, /* outputs of a tile of up to W4_FEW rows */
    AWQ_COLS = 32768 /* the same of W4_AWQ: whole rows of words, if possible */
};

static const char what[] = "activations";

/* ---- rows ---- */

struct job {
    struct w4_x *to;
    const void *x;
    enum dtype type;
    int64_t ld;
    bool failed; /* set by any thread, never cleared */
};

static size_t size_of(enum dtype t)
{
    return dtype_bits(t) / 8;
}

static const void *row_of(const struct job *j, int64_t r)
{
    return (const char *)j->x + (size_t)(r * j->ld) * size_of(j->type);
}

/* to[depth]: one row of x in the order of places, 0 at padding; from [cols]. */
static void place(const struct forge_w4a16 *w, enum dtype type, void *to,
                  const void *from)
{
    const int32_t *in = w->input;

    for (int64_t i = 0; i < w->depth; i++)
        if (type == DT_F32)
            ((float *)to)[i] = in[i] < 0 ? 0 : ((const float *)from)[in[i]];
        else
            ((uint16_t *)to)[i] =
                in[i] < 0 ? 0 : ((const uint16_t *)from)[in[i]];
}

/* Rows begin..end-1 of more than W4_FEW: reordered, and f16 widened to f32. */
static void copy_rows(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    const struct forge_w4a16 *w = j->to->w;
    size_t size = size_of(j->to->type);
    float *f = NULL;
    struct err e;

    if (j->type == DT_F16 && w->input &&
        !(f = mem_alloc((size_t)w->cols * sizeof(*f), what, &e)))
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
    for (int64_t r = (int64_t)begin; r < (int64_t)end && !j->failed; r++) {
        char *to = (char *)j->to->own + (size_t)(r * w->depth) * size;
        const void *from = row_of(j, r);

        if (j->type == DT_F16)
            (void)!to_f32(f ? f : (float *)(void *)to, from, DT_F16,
                          (size_t)w->cols);
        if (w->input)
            place(w, j->to->type, to, f ? f : from);
    }
    free(f);
}

static void pack_strips(void *ctx, size_t begin, size_t end)
{
    const struct w4_x *to = ctx;

    bf16_gemm_pack_strips(to->strips, to->p, to->ld, to->rows, to->w->depth,
                          (int64_t)begin, (int64_t)end);
}

/* x as the kernel reads it, where tiles would else copy it, each for its outputs. */
static int make_strips(struct w4_x *to, struct err *e)
{
    size_t n = bf16_gemm_strips_packed(to->rows, to->w->depth);

    to->strips = mem_pages(n * sizeof(*to->strips), what, e);
    if (!to->strips)
        return e->code;
    threads_for((size_t)((to->rows + GEMM_STRIP - 1) / GEMM_STRIP), 1,
                pack_strips, to);
    return 0;
}

static int many(struct job *j, struct err *e)
{
    struct w4_x *to = j->to;
    int64_t depth = to->w->depth;

    to->type = j->type == DT_BF16 ? DT_BF16 : DT_F32;
    to->p = j->x;
    to->ld = j->ld;
    if (to->type == DT_F32 && blas_open(e) < 0)
        return e->code;
    if (j->type == DT_F16 || to->w->input) {
        to->own =
            mem_alloc((size_t)(to->rows * depth) * size_of(to->type), what, e);
        if (!to->own)
            return e->code;
        to->p = to->own;
        to->ld = depth;
        threads_for((size_t)to->rows, 8, copy_rows, j);
        if (j->failed)
            return err_set(e, E_TEMP, "%s: no memory for a row", what);
    }
    return to->type == DT_BF16 && bf16_gemm_strips() ? make_strips(to, e) : 0;
}

typedef int32_t four __attribute__((vector_size(16), aligned(4), may_alias));
typedef float four_floats __attribute__((vector_size(16)));

/* Places of a piece. */
static int piece_of(enum w4_form form)
{
    return form == W4_BY_OUTPUT ? W4_RUN : W4_PIECE;
}

/* Inputs with one unit, from the first of a group on: sums of as many codes times two
 * digits fit 32 bits. */
static int run_of(enum w4_form form, int digits)
{
    return form == W4_AWQ && digits == 2 ? W4_RUN : piece_of(form);
}

/* Digits are in pairs. */
static bool in_pairs(enum w4_form form)
{
    return form == W4_AWQ && !w4_kernels()->quads;
}

/* Bytes of each digit of a piece. */
static int digits_of(enum w4_form form)
{
    return in_pairs(form) ? 2 * W4_PIECE : piece_of(form);
}

/* The first bytes of a, b, c, d side by side. */
static four bytes_of(four a, four b, four c, four d)
{
    return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24;
}

/* The digits of integers f of a piece. */
static void put_digits(const struct w4_fixed *to, int digits, int64_t piece,
                       const int32_t *f, enum w4_form form)
{
    bool pairs = in_pairs(form);
    int n = digits_of(form);
    int8_t *d = to->digit + piece * n;

    if (pairs && digits == 2) {
        for (int i = 0; i < W4_PIECE; i++)
            memcpy(d + 2 * i, &(int16_t){ (int16_t)f[i] }, sizeof(int16_t));
        return;
    }
    for (int i = 0; i < n; i += 16) { /* of four words or pairs */
        four v[4];

        for (int j = 0; j < 4; j++) {
            const int32_t *p =
                f + i % 64 * 2 + i / 64 + 2 * j; /* even or odd */

            if (form == W4_BY_OUTPUT)
                v[j] = (four){ p[0], p[8], p[16], p[24] };
            p = f + i + 2 * j; /* even and odd ones of two words */
            if (form == W4_BY_INPUT)
                v[j] = (four){ p[0], p[1], p[8], p[9] };
            p = f + i + j; /* of four quads */
            if (form == W4_AWQ && !pairs)
                v[j] = (four){ p[0], p[4], p[8], p[12] };
            p = f + i / 2 + j % 2; /* of four pairs */
            if (pairs)
                v[j] = j < 2 ? (four){ p[0], p[2], p[4], p[6] } : v[j - 2];
        }
        /* digits plus 128 are the bytes of f plus 128 in each of them */
        for (int j = 0; j < 4; j++)
            v[j] = (v[j] + 0x808080) ^ 0x808080;
        for (int t = 0; t < digits; t++) {
            four all = bytes_of(v[0] >> 8 * t, v[1] >> 8 * t, v[2] >> 8 * t,
                                v[3] >> 8 * t);

            memcpy(d + t * to->ld + i, &all, sizeof(all));
        }
    }
}

/* -8 times the sums of integers f of a piece; of W4_BY_OUTPUT a word each, and the
 * integers in the order of its kernels. */
static void put_bases(const struct w4_fixed *to, int64_t piece,
                      const int32_t *f, enum w4_form form)
{
    const four *v = (const four *)(const void *)f;

    for (int i = 0; i < piece_of(form); i += 8) {
        four sum = (v[i / 4] + v[i / 4 + 1]) * -8;
        int64_t at = form == W4_BY_OUTPUT ? piece * W4_LANES + i / 8 : piece;

        to->base[at] += sum[0] + sum[1] + sum[2] + sum[3];
    }
    if (form != W4_BY_OUTPUT)
        memcpy(to->fixed + piece * W4_PIECE, f, W4_PIECE * sizeof(*f));
    else
        for (int i = 0; i < W4_RUN; i++)
            to->fixed[piece * W4_RUN + i % 8 * W4_LANES + i / 8] = f[i];
}

/* The exponent of the largest of n inputs. */
static int32_t largest(const float *x, int64_t n)
{
    const four *v = (const four *)(const void *)x;
    four sizes = { 0 };
    int32_t most = 0;

    for (int64_t i = 0; i < n / 4; i++) {
        four t = v[i] & INT32_MAX, more = t > sizes;

        sizes = (t & more) | (sizes & ~more);
    }
    for (int i = 0; i < 4; i++)
        most = sizes[i] > most ? sizes[i] : most;
    for (int64_t i = n / 4 * 4; i < n; i++) {
        int32_t t;

        memcpy(&t, x + i, sizeof(t));
        most = (t & INT32_MAX) > most ? t & INT32_MAX : most;
    }
    return most >> 23;
}

/* n inputs of a piece from x on, as integers in its first places, in the unit for
 * `most`, the exponent of the largest: NaN where that is not finite. */
static void fix(const struct w4_fixed *to, int digits, int64_t piece,
                const float *x, int64_t n, int32_t most, enum w4_form form)
{
    const float rounder = 12582912; /* 1.5 * 2^23 */
    int32_t f[W4_RUN], bits;
    four *v = (four *)(void *)f;
    int size = piece_of(form), places = 8 * digits - 3;
    float inverse;

    memcpy(f, x, (size_t)n * sizeof(*x));
    memset(f + n, 0, (size_t)(size - n) * sizeof(*f));
    bits = most == 255       ? INT32_MAX :
           most > places + 1 ? (most - places) << 23 :
                               1 << 23;
    memcpy(&to->unit[piece], &bits, sizeof(bits));
    if (most == 255)
        return;
    bits = (254 << 23) - bits;
    memcpy(&inverse, &bits, sizeof(bits));
    for (int i = 0; i < size / 4; i++)
        v[i] = (four)((four_floats)v[i] * inverse + rounder) - 0x4b400000;
    put_digits(to, digits, piece, f, form);
    put_bases(to, piece, f, form);
}

/* A run of n inputs from x on, which have one unit; the number of its pieces. */
static int64_t fix_run(const struct w4_fixed *to, int digits, int64_t piece,
                       const float *x, int64_t n, enum w4_form form)
{
    int64_t size = piece_of(form), pieces = 0;
    int32_t most = largest(x, n);

    for (int64_t k = 0; k < n; k += size)
        fix(to, digits, piece + pieces++, x + k, n - k < size ? n - k : size,
            most, form);
    return pieces;
}

/* Row r of up to W4_FEW in the kernel's form, and its sums over groups.
 * row [cols], by_place [depth]: work memory. */
static void few_row(const struct job *j, int64_t r, float *row, float *by_place)
{
    const struct w4_x *to = j->to;
    const struct forge_w4a16 *w = to->w;
    bool whole = w->form == W4_BY_OUTPUT; /* pieces go across groups */
    int64_t piece = 0, run = run_of(w->form, to->digits);

    (void)!to_f32(row, row_of(j, r), j->type, (size_t)w->cols);
    if (w->input)
        place(w, DT_F32, by_place, row);
    else
        by_place = row;
    for (int64_t g = 0; w->shift && g < w->groups; g++) {
        double sum = 0;

        for (int64_t k = w->first[g]; k < w->first[g + 1]; k++)
            sum += (double)by_place[k];
        to->sums[r * w->groups + g] = (float)sum;
    }
    for (int64_t g = 0; g < (whole ? 1 : w->groups); g++) {
        int64_t end = whole ? w->depth : w->first[g + 1];

        for (int64_t k = whole ? 0 : w->first[g]; k < end; k += run)
            piece += fix_run(&to->fixed[r], to->digits, piece, by_place + k,
                             end - k < run ? end - k : run, w->form);
    }
}

/* Divide p, in zeros, among the parts of the rows' integers; returns their bytes. */
static size_t place_fixed(struct w4_x *to, char *p)
{
    const struct forge_w4a16 *w = to->w;
    bool whole = w->form == W4_BY_OUTPUT;
    int64_t size = piece_of(w->form), bases, pieces = 0, n, digits;

    for (int64_t g = 0; g < w->groups; g++)
        pieces += (w->first[g + 1] - w->first[g] + size - 1) / size;
    if (whole)
        pieces = (w->depth + size - 1) / size;
    to->pieces = pieces;
    bases = whole ? W4_LANES * pieces : pieces;
    n = pieces * size;
    digits = pieces * digits_of(w->form);
    for (int64_t r = 0; p && r < to->rows; r++) {
        struct w4_fixed *f = &to->fixed[r];

        f->ld = digits;
        f->fixed = (int32_t *)(void *)p;
        f->unit = (float *)(f->fixed + n);
        f->base = (int32_t *)(f->unit + pieces);
        f->digit = (int8_t *)(f->base + bases);
        p = (char *)f->digit + to->digits * digits;
    }
    return (size_t)to->rows *
           (size_t)(4 * (n + pieces + bases) + to->digits * digits);
}

static int few(struct job *j, struct err *e)
{
    struct w4_x *to = j->to;
    const struct forge_w4a16 *w = to->w;
    size_t sums = (size_t)(to->rows * w->groups) * sizeof(float);
    size_t size;
    float *row;

    to->type = DT_F32;
    to->digits = j->type == DT_BF16 ? 2 : 3;
    size = place_fixed(to, NULL);
    to->own = mem_zero(size + sums, 1, what, e);
    row = to->own ?
              mem_alloc((size_t)(w->cols + w->depth) * sizeof(*row), what, e) :
              NULL;
    if (!row)
        return e->code;
    (void)place_fixed(to, to->own);
    to->sums = (float *)(void *)((char *)to->own + size);
    for (int64_t r = 0; r < to->rows; r++)
        few_row(j, r, row, row + w->cols);
    free(row);
    return 0;
}

int w4_x_prepare(struct w4_x *to, const struct forge_w4a16 *w, const void *x,
                 enum dtype type, int64_t ld, int64_t rows, struct err *e)
{
    struct job j = { .to = to, .x = x, .type = type, .ld = ld };
    int rc;

    *to = (struct w4_x){ .w = w, .rows = rows };
    rc = rows <= W4_FEW ? few(&j, e) : many(&j, e);
    if (rc < 0)
        w4_x_release(to);
    return rc;
}

bool w4_x_share(struct w4_x *to, const struct w4_x *from,
                const struct forge_w4a16 *w)
{
    const struct forge_w4a16 *is = from->w;
    size_t groups = (size_t)(is->groups + 1) * sizeof(*is->first);

    if (w->input || is->input || w->form != is->form || w->depth != is->depth ||
        w->groups != is->groups || memcmp(w->first, is->first, groups) != 0 ||
        (w->shift && !is->shift)) /* sums are not there */
        return false;
    *to = *from;
    to->w = w;
    to->shares = true;
    return true;
}

void w4_x_release(struct w4_x *x)
{
    if (!x->shares) {
        free(x->own);
        free(x->strips);
    }
    x->own = x->strips = NULL;
}

/* ---- tiles ---- */

struct w4_tiles w4_tiles(const struct w4_x *x)
{
    const struct bf16_kernel *k = bf16_kernel();
    int64_t few = x->w->form == W4_AWQ ? AWQ_COLS : FEW_COLS;
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

/* The kernel, for outputs of a block from its first ones on; lines: kept for the others. */
static void make_values(struct w4_values *j, struct lines *lines)
{
    const struct forge_w4a16 *w = j->w;
    int64_t word = j->o % W4_BLOCK / 8, left = (w->rows - j->o) / 8;
    int64_t rows = w->depth - j->k < j->n ? w->depth - j->k : j->n;
    const uint32_t *from = w->codes + j->k * w->stride + j->o / 8;

    if (w->form == W4_AWQ) {
        for (int64_t r = 0; r < rows && !word; r++, from += w->stride)
            if (left >= W4_BLOCK / 8)
                memcpy(lines->row[r], from, sizeof(lines->row[r]));
            else
                memcpy(lines->row[r], from, (size_t)left * sizeof(*from));
        j->words = lines->row[0] + word;
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
            &lines);
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
                        &lines);
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
