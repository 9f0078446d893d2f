/* packed.c - see packed.h: finds, checks and unpacks the tensors of a quantized
 * linear. */
#include "checkpoint/packed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"
#include "checkpoint/tiles.h"
#include "common/math/quant.h"
#include "layout/unpack.h"

enum part { PART_CODES, PART_SCALES, PART_ZEROS, PART_INDEX, PART_SHAPE };

static const char *const flat_names[] = { "qweight", "scales", "qzeros",
                                          "g_idx", NULL };
static const char *const ct_names[] = { "weight_packed",     "weight_scale",
                                        "weight_zero_point", "weight_g_idx",
                                        "weight_shape",      NULL };

static const char *const tile_names[] = { "weight_int4pack", "scales_and_zeros",
                                          "input_perm", NULL };
static const char *const xpu_names[] = { "weight_int4pack", "scales", "zeros",
                                         "input_perm", NULL };

static const char *const *part_names(const struct checkpoint *c)
{
    switch (c->quant.storage) {
    case STORAGE_CT: return ct_names;
    case STORAGE_INT4PACK: return tile_names;
    case STORAGE_INT4PACK_XPU: return xpu_names;
    default: return flat_names;
    }
}

struct parts {
    const char *module;
    const struct ck_tensor *t[PART_SHAPE + 1];
};

static int bad(struct err *e, const struct ck_tensor *t, const char *why)
{
    return err_set(e, E_DATA, "'%.200s': %s", t->name, why);
}

static bool is_words(const struct ck_tensor *t)
{
    return t->dtype == DT_I32 || t->dtype == DT_U32;
}

static bool has_shape(const struct ck_tensor *t, uint64_t a, uint64_t b)
{
    return t->ndim == 2 && t->dims[0] == a && t->dims[1] == b;
}

/* ---- the sizes ---- */

static int find_parts(const struct checkpoint *c, const char *module,
                      struct parts *s, struct err *e)
{
    const char *const *names = part_names(c);

    memset(s, 0, sizeof(*s));
    s->module = module;
    if (c->quant.storage == STORAGE_PLAIN)
        return 0;
    for (int i = 0; names[i]; i++)
        s->t[i] = packed_part(c, module, names[i]);
    if (!s->t[PART_CODES])
        return 0;
    if (!s->t[PART_SCALES])
        return err_set(e, E_DATA, "'%.200s': has %s, but no %s", module,
                       names[PART_CODES], names[PART_SCALES]);
    if (!s->t[PART_ZEROS] && c->quant.storage != STORAGE_CT)
        return err_set(e, E_DATA, "'%.200s': has %s, but no %s", module,
                       names[PART_CODES], names[PART_ZEROS]);
    if (!is_words(s->t[PART_CODES]) || s->t[PART_CODES]->ndim != 2)
        return bad(e, s->t[PART_CODES], "is no matrix of 32-bit words");
    if (s->t[PART_INDEX] &&
        (s->t[PART_INDEX]->ndim != 1 || s->t[PART_INDEX]->dtype != DT_I32))
        return bad(e, s->t[PART_INDEX], "is no list of 32-bit integers");
    return 1;
}

/* *bits (4 or 8, the usual ones) = those of n codes in so many words; false:
 * neither. */
static bool find_bits(uint64_t n, uint64_t words, int *bits)
{
    for (int i = 0; i < 2 && unpack_words(n, *bits) != words; i++)
        *bits = 12 - *bits;
    return unpack_words(n, *bits) == words;
}

/* compressed-tensors stores the true shape in a tensor of two integers. */
static int read_shape(struct checkpoint *c, const struct parts *s,
                      struct packed *p, struct err *e)
{
    const struct ck_tensor *t = s->t[PART_SHAPE];
    uint64_t words = s->t[PART_CODES]->dims[1];
    int64_t v[2];
    int32_t v32[2];
    int r;

    if (!t)
        return 0;
    if (t->ndim != 1 || t->dims[0] != 2 ||
        (t->dtype != DT_I64 && t->dtype != DT_I32))
        return bad(e, t, "is no pair of integers");
    r = checkpoint_read(c, t, t->dtype == DT_I64 ? (void *)v : (void *)v32, e);
    if (r)
        return r;
    for (int i = 0; i < 2 && t->dtype == DT_I32; i++)
        v[i] = v32[i];
    if (v[0] != (int64_t)p->rows || v[1] < 1 ||
        !find_bits((uint64_t)v[1], words, &p->bits))
        return err_set(e, E_DATA,
                       "'%.200s': says %" PRId64 "x%" PRId64
                       ", the packed words are %" PRIu64 "x%" PRIu64,
                       t->name, v[0], v[1], p->rows, words);
    p->cols = (uint64_t)v[1];
    return 0;
}

static int find_sizes(struct checkpoint *c, const struct parts *s,
                      struct packed *p, struct err *e)
{
    const struct ck_tensor *q = s->t[PART_CODES], *gi = s->t[PART_INDEX];
    uint64_t a = q->dims[0], b = q->dims[1], per;
    enum storage kind = c->quant.storage;
    int r = 0;

    if (!a || !b || a >= (uint64_t)1 << 31 || b >= (uint64_t)1 << 31)
        return bad(e, q, "is empty or too large");
    p->bits = c->quant.bits;
    p->rows = kind == STORAGE_AWQ ? 8 * b : kind == STORAGE_CT ? a : b;
    /* GPTQ's zeros tell the bits; other sizes are refused by check_zeros() */
    if (kind != STORAGE_AWQ && kind != STORAGE_CT &&
        s->t[PART_ZEROS]->ndim == 2)
        (void)find_bits(b, s->t[PART_ZEROS]->dims[1], &p->bits);
    per = 32 / (unsigned)p->bits;
    p->cols = kind == STORAGE_AWQ ? a : per * (kind == STORAGE_CT ? b : a);
    if (kind == STORAGE_CT)
        r = read_shape(c, s, p, e);
    else if (kind != STORAGE_AWQ && gi &&
             unpack_words(gi->dims[0], p->bits) == a)
        p->cols = gi->dims[0];
    if (!r && gi && kind != STORAGE_AWQ && gi->dims[0] != p->cols)
        return err_set(e, E_DATA,
                       "'%.200s': %" PRIu64 " entries for %" PRIu64 " inputs",
                       gi->name, gi->dims[0], p->cols);
    return r;
}

/* The number of groups follows from the scales; the group size from the
 * configuration if that fits, else by division (modules may differ). */
static int find_groups(const struct checkpoint *c, const struct parts *s,
                       struct packed *p, struct err *e)
{
    const struct ck_tensor *t = s->t[PART_SCALES];
    bool ct = c->quant.storage == STORAGE_CT;
    uint64_t rows = t->dims[ct ? 0 : 1];

    if (t->ndim == 1 && ct)
        p->groups = 1;
    else if (t->ndim == 2)
        p->groups = t->dims[ct ? 1 : 0];
    else
        return bad(e, t, "is no matrix of scales");
    if (!dtype_is_float(t->dtype) || dtype_bits(t->dtype) < 16)
        return bad(e, t, "scales of this type are not supported");
    p->scale_dtype = t->dtype;
    p->group = c->quant.group > 0 ? (uint64_t)c->quant.group : p->cols;
    if (quant_groups(p->cols, p->group) != p->groups && p->groups)
        p->group = p->cols % p->groups ? 0 : p->cols / p->groups;
    if (rows != p->rows || !p->groups || p->groups > p->cols || !p->group)
        return err_set(e, E_DATA,
                       "'%.200s': %" PRIu64 " groups of %" PRIu64
                       " rows do not fit %" PRIu64 "x%" PRIu64
                       " weights in groups of %" PRId64,
                       t->name, p->groups, rows, p->rows, p->cols,
                       c->quant.group);
    return 0;
}

static int check_zeros(const struct checkpoint *c, const struct parts *s,
                       const struct packed *p, struct err *e)
{
    const struct ck_tensor *t = s->t[PART_ZEROS];
    uint64_t words = unpack_words(p->rows, p->bits);

    if (!t)
        return 0;
    if (c->quant.storage == STORAGE_CT) {
        if (t->dtype == DT_I8 && has_shape(t, p->rows, p->groups))
            return 0;
        if (is_words(t) && has_shape(t, words, p->groups))
            return 0;
    } else if (is_words(t) && has_shape(t, p->groups, words)) {
        return 0;
    }
    return err_set(e, E_DATA,
                   "'%.200s': not the zeros of %" PRIu64 " rows in %" PRIu64
                   " groups",
                   t->name, p->rows, p->groups);
}

/* ---- the contents ---- */

static int read_codes(struct checkpoint *c, const struct parts *s,
                      struct packed *p, struct err *e)
{
    uint32_t *q = packed_bytes(c, s->t[PART_CODES], e);

    if (!q)
        return e->code;
    p->codes =
        mem_pages(p->rows * unpack_words(p->cols, p->bits) * 4, s->module, e);
    if (p->codes && c->quant.storage == STORAGE_AWQ)
        unpack_awq_codes(p->codes, q, p->rows, p->cols);
    else if (p->codes && c->quant.storage == STORAGE_CT)
        unpack_ct_codes(p->codes, q, p->rows, p->cols, p->bits);
    else if (p->codes)
        unpack_gptq_codes(p->codes, q, p->rows, p->cols, p->bits);
    free(q);
    return p->codes ? 0 : e->code;
}

static int read_zeros(struct checkpoint *c, const struct parts *s,
                      struct packed *p, struct err *e)
{
    const struct ck_tensor *t = s->t[PART_ZEROS];
    enum storage kind = c->quant.storage;
    int middle = quant_middle(p->bits);
    uint32_t *q;

    p->zeros = mem_alloc(p->rows * p->groups, s->module, e);
    if (!p->zeros)
        return e->code;
    memset(p->zeros, middle, p->rows * p->groups);
    if (!t)
        return 0;
    if (!(q = packed_bytes(c, t, e)))
        return e->code;
    if (t->dtype == DT_I8) /* one signed byte each, minus the middle */
        for (uint64_t i = 0; i < p->rows * p->groups; i++)
            p->zeros[i] =
                (uint8_t)((((int8_t *)q)[i] + middle) & quant_top(p->bits));
    else if (kind == STORAGE_AWQ)
        unpack_awq_zeros(p->zeros, q, p->rows, p->groups);
    else if (kind == STORAGE_CT)
        unpack_ct_zeros(p->zeros, q, p->rows, p->groups, p->bits);
    else
        unpack_gptq_zeros(p->zeros, q, p->rows, p->groups, p->bits,
                          kind == STORAGE_GPTQ);
    free(q);
    return 0;
}

/* AWQ and GPTQ store scales as [groups, rows]: transpose them. */
static int read_scales(struct checkpoint *c, const struct parts *s,
                       struct packed *p, struct err *e)
{
    size_t size = dtype_bits(p->scale_dtype) / 8;
    uint8_t *v = packed_bytes(c, s->t[PART_SCALES], e);

    if (!v || c->quant.storage == STORAGE_CT) {
        p->scales = v;
        return v ? 0 : e->code;
    }
    p->scales = mem_alloc(p->rows * p->groups * size, s->module, e);
    for (uint64_t g = 0; g < p->groups && p->scales; g++)
        for (uint64_t o = 0; o < p->rows; o++)
            memcpy(p->scales + (o * p->groups + g) * size,
                   v + (g * p->rows + o) * size, size);
    free(v);
    return p->scales ? 0 : e->code;
}

/* p->g_idx stays NULL if it is input / group everywhere. */
static int read_index(struct checkpoint *c, const struct parts *s,
                      struct packed *p, struct err *e)
{
    const struct ck_tensor *t = s->t[PART_INDEX];
    bool plain = true, unused = true;
    int32_t *v;

    if (!t || c->quant.storage == STORAGE_AWQ)
        return 0;
    if (!(v = packed_bytes(c, t, e)))
        return e->code;
    /* compressed-tensors: not in use where all are -1 */
    for (uint64_t k = 0; unused && k < p->cols; k++)
        unused = v[k] == -1;
    for (uint64_t k = 0; !unused && k < p->cols; k++) {
        plain = plain && v[k] >= 0 && (uint64_t)v[k] == k / p->group;
        if (v[k] < 0 || (uint64_t)v[k] >= p->groups) {
            err_set(e, E_DATA,
                    "'%.200s': input %" PRIu64 " in group %d of %" PRIu64,
                    t->name, k, v[k], p->groups);
            free(v);
            return e->code;
        }
    }
    if (plain || unused)
        free(v);
    else
        p->g_idx = v;
    return 0;
}

/* Where each group is a run of inputs, and they are only numbered otherwise,
 * scales and zeros move: then g_idx has no more to say. */
static int straighten(struct packed *p, const char *module, struct err *e)
{
    size_t size = dtype_bits(p->scale_dtype) / 8;
    uint8_t *zeros, *scales;
    uint64_t k = 0;

    while (p->g_idx && k < p->cols && p->g_idx[k] == p->g_idx[k - k % p->group])
        k++;
    if (!p->g_idx || k < p->cols)
        return 0;
    zeros = mem_alloc(p->groups, module, e);
    scales = mem_alloc(p->groups * size, module, e);
    for (uint64_t o = 0; zeros && scales && o < p->rows; o++) {
        uint8_t *z = p->zeros + o * p->groups;
        uint8_t *s = p->scales + o * p->groups * size;

        for (uint64_t g = 0; g < p->groups; g++) {
            uint64_t from = (uint64_t)p->g_idx[g * p->group];

            zeros[g] = z[from];
            memcpy(scales + g * size, s + from * size, size);
        }
        memcpy(z, zeros, p->groups);
        memcpy(s, scales, p->groups * size);
    }
    k = zeros && scales;
    free(zeros);
    free(scales);
    if (!k)
        return e->code;
    free(p->g_idx);
    p->g_idx = NULL;
    return 0;
}

/* codes: whether to read them, too. */
static int read_parts(struct checkpoint *c, const char *module, bool codes,
                      struct packed *p, struct err *e)
{
    struct parts s;
    int r;

    if (tiles_are(c))
        return tiles_read(c, module, codes, p, e);
    r = find_parts(c, module, &s, e);
    memset(p, 0, sizeof(*p));
    if (r <= 0)
        return r;
    if ((r = find_sizes(c, &s, p, e)) || (r = find_groups(c, &s, p, e)) ||
        (r = check_zeros(c, &s, p, e)))
        return r;
    if ((r = read_index(c, &s, p, e)) ||
        (codes && (r = read_codes(c, &s, p, e))) ||
        (r = read_zeros(c, &s, p, e)) || (r = read_scales(c, &s, p, e)) ||
        (r = straighten(p, module, e))) {
        packed_release(p);
        return r;
    }
    return 1;
}

int packed_read(struct checkpoint *c, const char *module, struct packed *p,
                struct err *e)
{
    return read_parts(c, module, true, p, e);
}

int checkpoint_grid(struct checkpoint *c, const char *module,
                    struct ck_quantized *q, struct err *e)
{
    struct packed p;
    int r = read_parts(c, module, false, &p, e);

    memset(q, 0, sizeof(*q));
    if (r <= 0)
        return r;
    *q = (struct ck_quantized){ .rows = p.rows,
                                .cols = p.cols,
                                .groups = p.groups,
                                .group = p.group,
                                .bits = p.bits,
                                .zeros = p.zeros,
                                .scale_dtype = p.scale_dtype,
                                .scales = p.scales,
                                .g_idx = p.g_idx };
    return 1;
}

/* ---- words for products ---- */

/* Zeros stored as bytes, minus `base`, to packed words as in
 * compressed-tensors. */
static uint32_t *pack_zeros(const void *bytes, int base, const struct packed *p,
                            const char *module, struct err *e)
{
    const int8_t *z = bytes;
    size_t n = (size_t)(unpack_words(p->rows, 4) * p->groups);
    uint32_t *to = mem_zero(n, sizeof(*to), module, e);

    for (uint64_t o = 0; to && o < p->rows; o++)
        for (uint64_t g = 0; g < p->groups; g++)
            to[o / 8 * p->groups + g] |=
                (uint32_t)((z[o * p->groups + g] + base) & 15) << 4 * (o % 8);
    return to;
}

static int read_words(struct checkpoint *c, const struct parts *s,
                      struct packed *p, struct ck_words *w, struct err *e)
{
    bool ct = c->quant.storage == STORAGE_CT;
    size_t n = (size_t)(p->rows * p->groups);
    void *t;

    if (!(w->codes = packed_bytes(c, s->t[PART_CODES], e)) ||
        !(w->scales = packed_bytes(c, s->t[PART_SCALES], e)) ||
        (s->t[PART_ZEROS] &&
         !(w->zeros = packed_bytes(c, s->t[PART_ZEROS], e))) ||
        (s->t[PART_INDEX] && c->quant.storage != STORAGE_AWQ &&
         !(w->g_idx = packed_bytes(c, s->t[PART_INDEX], e))))
        return e->code;
    if (ct && w->zeros && s->t[PART_ZEROS]->dtype == DT_I8) {
        if (!(t = pack_zeros(w->zeros, 8, p, s->module, e)))
            return e->code;
        free(w->zeros);
        w->zeros = t;
    }
    if (p->scale_dtype != DT_F64)
        return 0;
    if (!(t = mem_alloc(n * sizeof(float), s->module, e)))
        return e->code;
    (void)!to_f32(t, w->scales, DT_F64, n);
    free(w->scales);
    w->scales = t;
    p->scale_dtype = DT_F32;
    return 0;
}

static void name_words(const struct checkpoint *c, const struct packed *p,
                       struct ck_words *w)
{
    static const enum forge_w4a16_layout layout[] = {
        [STORAGE_AWQ] = FORGE_W4A16_AWQ,
        [STORAGE_GPTQ] = FORGE_W4A16_GPTQ,
        [STORAGE_GPTQ_V2] = FORGE_W4A16_GPTQ_V2,
        [STORAGE_CT] = FORGE_W4A16_COMPRESSED_TENSORS,
        [STORAGE_INT4PACK] = FORGE_W4A16_COMPRESSED_TENSORS,
        [STORAGE_INT4PACK_XPU] = FORGE_W4A16_COMPRESSED_TENSORS,
    };

    w->of = (struct forge_w4a16_linear){
        .layout = layout[c->quant.storage],
        .outputs = (int64_t)p->rows,
        .inputs = (int64_t)p->cols,
        .group = (int64_t)p->group,
        .codes = w->codes,
        .scales = w->scales,
        .scale_type = (enum forge_w4a16_type)p->scale_dtype,
        .zeros = w->zeros,
        .g_idx = w->g_idx,
    };
}

/* int4pack: tiles are converted to words. */
static int read_tiles(struct checkpoint *c, const char *module,
                      struct packed *p, struct ck_words *w, struct err *e)
{
    int r = tiles_read(c, module, true, p, e);

    if (r <= 0)
        return r;
    w->codes = p->codes;
    w->scales = p->scales;
    w->g_idx = p->g_idx;
    w->zeros = pack_zeros(p->zeros, 0, p, module, e);
    free(p->zeros);
    return w->zeros ? 1 : e->code;
}

/* Other layouts: words as stored. */
static int read_stored(struct checkpoint *c, const char *module,
                       struct packed *p, struct ck_words *w, struct err *e)
{
    struct parts s;
    int r = find_parts(c, module, &s, e);

    if (r <= 0)
        return r;
    if ((r = find_sizes(c, &s, p, e)) || (r = find_groups(c, &s, p, e)) ||
        (r = check_zeros(c, &s, p, e)))
        return r;
    if (p->bits != 4)
        return 0;
    return (r = read_words(c, &s, p, w, e)) ? r : 1;
}

int checkpoint_words(struct checkpoint *c, const char *module,
                     struct ck_words *w, struct err *e)
{
    struct packed p = { 0 };
    int r;

    *w = (struct ck_words){ 0 };
    r = (tiles_are(c) ? read_tiles : read_stored)(c, module, &p, w, e);
    if (r > 0)
        name_words(c, &p, w);
    else
        ck_words_release(w);
    return r;
}

void ck_words_release(struct ck_words *w)
{
    free(w->codes);
    free(w->scales);
    free(w->zeros);
    free(w->g_idx);
    *w = (struct ck_words){ 0 };
}

bool checkpoint_part(const struct checkpoint *c, const struct ck_tensor *t,
                     char *module, size_t cap, bool *first)
{
    const char *const *names = part_names(c);
    const char *dot = strrchr(t->name, '.');

    if (c->quant.storage == STORAGE_PLAIN || !dot ||
        (size_t)(dot - t->name) >= cap)
        return false;
    for (int i = 0; names[i]; i++) {
        if (strcmp(dot + 1, names[i]) != 0)
            continue;
        snprintf(module, cap, "%.*s", (int)(dot - t->name), t->name);
        *first = i == PART_CODES;
        return *first || packed_part(c, module, names[PART_CODES]);
    }
    return false;
}
