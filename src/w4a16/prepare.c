/* prepare.c - see w4a16.h: makes a struct forge_w4a16 from a checkpoint's
 * tensors. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/threads.h"
#include "layout/unpack.h"
#include "w4a16/w4a16.h"

static const char what[] = "4-bit linear";

static void *get(struct forge_w4a16 *w, int64_t n, size_t size, struct err *e)
{
    void *p = mem_zero((size_t)n, size, what, e);

    w->bytes += p ? (size_t)n * size : 0;
    return p;
}

/* ---- act-order: inputs of a group are not contiguous ---- */

/* Assign places: the inputs of a group together, each group padded to whole
 * words. */
static int sort_inputs(struct forge_w4a16 *w, const struct w4_order *o,
                       struct err *e)
{
    if (w4_sort(o, 8, w->first, &w->input, e) < 0)
        return e->code;
    w->depth = w->first[w->groups];
    w->bytes += (size_t)w->depth * sizeof(*w->input);
    return 0;
}

struct copy {
    const struct forge_w4a16 *w;
    const struct forge_w4a16_linear *l;
    uint32_t *to; /* [depth / 8][O] */
};

static uint32_t code_at(const struct forge_w4a16_linear *l, int64_t o,
                        int64_t k)
{
    static const unsigned char nibble[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };
    int64_t words = (l->inputs + 7) / 8;

    switch (l->layout) {
    case FORGE_W4A16_COMPRESSED_TENSORS:
        return l->codes[o * words + k / 8] >> 4 * (k % 8) & 15;
    case FORGE_W4A16_AWQ:
        return l->codes[k * (l->outputs / 8) + o / 8] >> 4 * nibble[o % 8] & 15;
    default: return l->codes[k / 8 * l->outputs + o] >> 4 * (k % 8) & 15;
    }
}

static void copy_words(void *ctx, size_t begin, size_t end)
{
    const struct copy *c = ctx;
    int64_t n = c->w->rows;

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++)
        for (int j = 0; j < 8; j++) {
            int64_t k = c->w->input[8 * r + j];

            for (int64_t o = 0; o < n && k >= 0; o++)
                c->to[r * n + o] |= code_at(c->l, o, k) << 4 * j;
        }
}

static int reorder(struct forge_w4a16 *w, const struct forge_w4a16_linear *l,
                   const struct w4_order *o, struct err *e)
{
    struct copy c = { w, l, NULL };

    if (sort_inputs(w, o, e) < 0)
        return e->code;
    w->own = c.to = get(w, w->depth / 8 * w->rows, sizeof(*c.to), e);
    if (!c.to)
        return e->code;
    threads_for((size_t)w->depth / 8, 1, copy_words, &c);
    w->form = W4_BY_INPUT;
    w->codes = c.to;
    w->stride = w->rows;
    return 0;
}

/* ---- words used in place ---- */

/* Use the caller's words as they are. */
static void use_in_place(struct forge_w4a16 *w,
                         const struct forge_w4a16_linear *l)
{
    w->depth = w->cols;
    for (int64_t g = 0; g < w->groups; g++)
        w->first[g] = g * w->group;
    w->first[w->groups] = w->cols;
    w->codes = l->codes;
    w->form = l->layout == FORGE_W4A16_COMPRESSED_TENSORS ? W4_BY_OUTPUT :
              l->layout == FORGE_W4A16_AWQ                ? W4_AWQ :
                                                            W4_BY_INPUT;
    w->stride = w->form == W4_BY_OUTPUT ? (w->cols + 7) / 8 :
                w->form == W4_AWQ       ? w->rows / 8 :
                                          w->rows;
}

/* Set base and delta. */
static int find_lanes(struct forge_w4a16 *w, struct err *e)
{
    int64_t blocks = (w->stride + W4_LANES - 1) / W4_LANES;

    if (w->form != W4_BY_OUTPUT)
        return 0;
    w->base = get(w, blocks, sizeof(*w->base), e);
    if (w->base && w->group % W4_RUN && w->groups > 1)
        w->delta = get(w, blocks * W4_LANES, sizeof(*w->delta), e);
    if (!w->base || (!w->delta && w->group % W4_RUN && w->groups > 1))
        return e->code;
    for (int64_t b = 0; b < blocks; b++) {
        w->base[b] = (int32_t)(b * W4_RUN / w->group);
        for (int64_t i = 0; w->delta && i < W4_LANES; i++) {
            int64_t g = (b * W4_RUN + 8 * i) / w->group;

            g = g < w->groups ? g : w->groups - 1;
            w->delta[b * W4_LANES + i] = (int32_t)g - w->base[b];
        }
    }
    return 0;
}

/* ---- scales and zeros ---- */

/* Zeros [O, G] as bytes.  NULL: all are 8, or an error (e->code). */
static uint8_t *read_zeros(const struct forge_w4a16 *w,
                           const struct forge_w4a16_linear *l, struct err *e)
{
    size_t n = (size_t)(w->rows * w->groups), i = 0;
    uint64_t rows = (uint64_t)w->rows, groups = (uint64_t)w->groups;
    uint8_t *z;

    e->code = 0;
    if (!l->zeros)
        return NULL;
    z = mem_alloc(n, what, e);
    if (!z)
        return NULL;
    if (l->layout == FORGE_W4A16_COMPRESSED_TENSORS)
        unpack_ct_zeros(z, l->zeros, rows, groups, 4);
    else if (l->layout == FORGE_W4A16_AWQ)
        unpack_awq_zeros(z, l->zeros, rows, groups);
    else
        unpack_gptq_zeros(z, l->zeros, rows, groups, 4,
                          l->layout == FORGE_W4A16_GPTQ);
    while (i < n && z[i] == 8)
        i++;
    if (i < n)
        return z;
    free(z);
    return NULL;
}

/* scales: as stored; z: zeros [O, G], or NULL. */
static int set_scales(struct forge_w4a16 *w, const char *scales,
                      const uint8_t *z, bool by_output, struct err *e)
{
    size_t size = dtype_bits(w->scale_type) / 8;

    for (int64_t o = 0; o < w->rows; o++)
        for (int64_t g = 0; g < w->groups; g++) {
            int64_t at = w4_at(w, g, o), by = o * w->groups + g;
            int64_t from = by_output ? by : g * w->rows + o;

            memcpy((char *)w->scale + (size_t)at * size,
                   scales + (size_t)from * size, size);
            if (!isfinite(w4_scale(w, at)))
                return err_set(e, E_DATA,
                               "%s: the scale of output %" PRId64
                               ", group %" PRId64 " is not finite",
                               what, o, g);
            if (z)
                w->zero[at] = (int8_t)(z[by] - 8);
        }
    return 0;
}

static int read_scales(struct forge_w4a16 *w,
                       const struct forge_w4a16_linear *l, struct err *e)
{
    int64_t blocks = (w->rows + W4_BLOCK - 1) / W4_BLOCK * W4_BLOCK;
    /* kernels read whole vectors, also from the last scale on */
    int64_t room =
        (w->form == W4_AWQ ? blocks : w->rows) * w->groups + W4_LANES;
    uint8_t *z = read_zeros(w, l, e);
    int rc = e->code;

    w->pitch = w->form == W4_AWQ ? blocks : w->rows;
    w->scale_type = (enum dtype)l->scale_type;
    if (!rc)
        w->scale = get(w, room, dtype_bits(w->scale_type) / 8, e);
    if (!rc && z)
        w->zero = get(w, room, sizeof(*w->zero), e);
    if (!rc && (!w->scale || (z && !w->zero)))
        rc = e->code;
    if (!rc)
        rc = set_scales(w, l->scales, z,
                        l->layout == FORGE_W4A16_COMPRESSED_TENSORS, e);
    free(z);
    return rc;
}

/* ---- the whole ---- */

static int fill(struct forge_w4a16 *w, const struct forge_w4a16_linear *l,
                struct err *e)
{
    struct w4_order o = w4_order(l);

    w->rows = l->outputs;
    w->cols = l->inputs;
    w->group = o.group;
    w->groups = o.groups;
    w->first = get(w, w->groups + 1, sizeof(*w->first), e);
    if (!w->first || w4_order_check(&o, e) < 0)
        return e->code;
    /* kernels want one scale for the eight inputs of a word */
    if (!o.g_idx &&
        (l->layout == FORGE_W4A16_AWQ || w->groups == 1 || w->group % 8 == 0))
        use_in_place(w, l);
    else if (reorder(w, l, &o, e) < 0)
        return e->code;
    return find_lanes(w, e) < 0 ? e->code : read_scales(w, l, e);
}

int w4_prepare(struct forge_w4a16 **out, const struct forge_w4a16_linear *l,
               struct err *e)
{
    struct forge_w4a16 *w;

    *out = NULL;
    if (w4_check(l, e) < 0)
        return e->code;
    w = mem_zero(1, sizeof(*w), what, e);
    if (!w)
        return e->code;
    w->bytes = sizeof(*w);
    if (fill(w, l, e) < 0) {
        forge_w4a16_release(w);
        return e->code;
    }
    *out = w;
    return 0;
}

void w4_own_codes(struct forge_w4a16 *w, void *p)
{
    if (w->own) /* reordered: p is not used any more */
        free(p);
    else
        w->own = p;
}

void forge_w4a16_release(struct forge_w4a16 *w)
{
    if (!w)
        return;
    free(w->first);
    free(w->input);
    free(w->scale);
    free(w->zero);
    free(w->base);
    free(w->delta);
    free(w->own);
    free(w);
}

size_t forge_w4a16_memory(const struct forge_w4a16 *w)
{
    return w ? w->bytes : 0;
}

int forge_w4a16_prepare(struct forge_w4a16 **w,
                        const struct forge_w4a16_linear *l, char *why,
                        size_t why_size)
{
    struct err e = { 0 };
    int rc = w ? w4_prepare(w, l, &e) : err_set(&e, E_CONFIG, "%s: NULL", what);

    if (rc < 0 && why && why_size)
        snprintf(why, why_size, "%s", e.msg);
    return rc;
}
