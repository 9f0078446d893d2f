/* rows.c - see w4a16.h: prepares rows of x, by all threads. */
#include <stdlib.h>
#include <string.h>

#include "common/math/bf16_gemm.h"
#include "common/math/blas.h"
#include "common/math/threads.h"
#include "w4a16/kernels.h"

enum { AT_ONCE = 256 }; /* least inputs of up to W4_FEW rows for a thread */

static const char what[] = "activations";

/* ---- more than W4_FEW ---- */

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

/* x as the kernel reads it, where tiles would else copy it, each for its outputs. */
static int make_strips(struct w4_x *to, struct err *e)
{
    size_t n = bf16_gemm_strips_packed(to->rows, to->w->depth);

    to->strips = mem_pages(n * sizeof(*to->strips), what, e);
    if (!to->strips)
        return e->code;
    bf16_gemm_pack_strips(to->strips, to->p, to->ld, to->rows, to->w->depth);
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
static bool in_pairs(enum w4_form form, int digits)
{
    return form == W4_AWQ &&
           (!w4_kernels()->quads || w4_awq(digits, 0) == W4_AWQ_ROWS);
}

/* Bytes of each digit of a piece. */
static int digits_of(enum w4_form form, bool pairs)
{
    return pairs ? 2 * W4_PIECE : piece_of(form);
}

/* The first bytes of a, b, c, d side by side. */
static four bytes_of(four a, four b, four c, four d)
{
    return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24;
}

/* The digits of integers f of a piece. */
static void put_digits(const struct w4_x *x, const struct w4_fixed *to,
                       int64_t piece, const int32_t *f)
{
    enum w4_form form = x->w->form;
    bool pairs = x->pairs;
    int digits = x->digits;
    int n = digits_of(form, pairs);
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

        if (!i || form == W4_BY_OUTPUT)
            to->base[at] = 0;
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
static void fix(const struct w4_x *to, int64_t r, int64_t piece, const float *x,
                int64_t n, int32_t most)
{
    const float rounder = 12582912; /* 1.5 * 2^23 */
    int32_t f[W4_RUN], bits;
    four *v = (four *)(void *)f;
    int size = piece_of(to->w->form), places = 8 * to->digits - 3;
    float inverse = 0;

    memcpy(f, x, (size_t)n * sizeof(*x));
    memset(f + n, 0, (size_t)(size - n) * sizeof(*f));
    bits = most == 255       ? INT32_MAX :
           most > places + 1 ? (most - places) << 23 :
                               1 << 23;
    memcpy(&to->fixed[r].unit[piece], &bits, sizeof(bits));
    bits = (254 << 23) - bits;
    if (most == 255)
        memset(f, 0, sizeof(f));
    else
        memcpy(&inverse, &bits, sizeof(bits));
    for (int i = 0; i < size / 4; i++)
        v[i] = (four)((four_floats)v[i] * inverse + rounder) - 0x4b400000;
    put_digits(to, &to->fixed[r], piece, f);
    put_bases(&to->fixed[r], piece, f, to->w->form);
}

/* x[n] = row r at places k..k+n-1; n <= W4_RUN. */
static void take(const struct job *j, int64_t r, int64_t k, int64_t n, float *x)
{
    const int32_t *in = j->to->w->input;
    size_t size = size_of(j->type);
    const char *row = row_of(j, r);
    _Alignas(float) char t[W4_RUN * sizeof(float)] = { 0 };

    if (!in) {
        (void)!to_f32(x, row + (size_t)k * size, j->type, (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        if (in[k + i] >= 0)
            memcpy(t + (size_t)i * size, row + (size_t)in[k + i] * size, size);
    (void)!to_f32(x, t, j->type, (size_t)n);
}

/* Places k..end-1 of row r in the kernel's form, from a piece on; the next piece. */
static int64_t few_places(const struct job *j, int64_t r, int64_t k,
                          int64_t end, int64_t piece)
{
    const struct w4_x *to = j->to;
    int64_t size = piece_of(to->w->form);
    int64_t run = run_of(to->w->form, to->digits);

    for (; k < end; k += run) {
        int64_t n = end - k < run ? end - k : run;
        float x[W4_RUN];
        int32_t most;

        take(j, r, k, n, x);
        most = largest(x, n);
        for (int64_t i = 0; i < n; i += size)
            fix(to, r, piece++, x + i, n - i < size ? n - i : size, most);
    }
    return piece;
}

/* The sum of row r over group g. */
static float few_sum(const struct job *j, int64_t r, int64_t g)
{
    const int64_t *first = j->to->w->first + g;
    double sum = 0;

    for (int64_t k = first[0]; k < first[1]; k += W4_RUN) {
        int64_t n = first[1] - k < W4_RUN ? first[1] - k : W4_RUN;
        float x[W4_RUN];

        take(j, r, k, n, x);
        for (int64_t i = 0; i < n; i++)
            sum += (double)x[i];
    }
    return (float)sum;
}

/* Pieces of groups 0..g-1, none of which a piece goes across. */
static int64_t pieces_before(const struct forge_w4a16 *w, int64_t g)
{
    int64_t size = piece_of(w->form), pieces = 0;

    for (int64_t i = 0; i < g; i++)
        pieces += (w->first[i + 1] - w->first[i] + size - 1) / size;
    return pieces;
}

/* What has pieces of its own: groups, or of W4_BY_OUTPUT, where pieces go across groups,
 * pieces. */
static int64_t spans_of(const struct w4_x *to)
{
    return to->w->form == W4_BY_OUTPUT ? to->pieces : to->w->groups;
}

/* Spans begin..end-1, of all rows, one after the other. */
static void few_spans(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct forge_w4a16 *w = j->to->w;
    int64_t spans = spans_of(j->to), piece = -1;

    for (int64_t t = (int64_t)begin; t < (int64_t)end; t++) {
        int64_t r = t / spans, i = t % spans;

        if (w->form == W4_BY_OUTPUT) {
            int64_t k = i * W4_RUN, left = w->depth - k;

            (void)few_places(j, r, k, k + (left < W4_RUN ? left : W4_RUN), i);
            continue;
        }
        piece = piece < 0 || !i ? pieces_before(w, i) : piece;
        piece = few_places(j, r, w->first[i], w->first[i + 1], piece);
    }
}

static void few_sums(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    int64_t groups = j->to->w->groups;

    for (int64_t t = (int64_t)begin; t < (int64_t)end; t++)
        j->to->sums[t] = few_sum(j, t / groups, t % groups);
}

/* Divide p among the parts of the rows' integers; returns their bytes. */
static size_t place_fixed(struct w4_x *to, char *p)
{
    const struct forge_w4a16 *w = to->w;
    bool whole = w->form == W4_BY_OUTPUT;
    int64_t size = piece_of(w->form), bases, pieces, n, digits;

    pieces = whole ? (w->depth + size - 1) / size : pieces_before(w, w->groups);
    to->pieces = pieces;
    bases = whole ? W4_LANES * pieces : pieces;
    n = pieces * size;
    digits = pieces * digits_of(w->form, to->pairs);
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

/* A loop over n parts of the rows, of so many inputs that waking threads pays. */
static void few_loop(struct job *j, int64_t n,
                     void (*fn)(void *ctx, size_t begin, size_t end))
{
    int64_t grain = AT_ONCE * n / (j->to->rows * j->to->w->depth);

    threads_for((size_t)n, (size_t)grain, fn, j);
}

static int few(struct job *j, struct err *e)
{
    struct w4_x *to = j->to;
    int64_t sums = to->rows * to->w->groups;
    size_t size;

    to->type = DT_F32;
    to->digits = j->type == DT_F32 ? 3 : 2;
    to->pairs = in_pairs(to->w->form, to->digits);
    size = place_fixed(to, NULL);
    to->own = mem_alloc(size + (size_t)sums * sizeof(float), what, e);
    if (!to->own)
        return e->code;
    (void)place_fixed(to, to->own);
    to->sums = (float *)(void *)((char *)to->own + size);
    few_loop(j, to->rows * spans_of(to), few_spans);
    if (to->w->zero)
        few_loop(j, sums, few_sums);
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
        (w->zero && !is->zero)) /* sums are not there */
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
