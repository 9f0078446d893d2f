/* linear.c - see checkpoint.h: weights as numbers, whatever their storage. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/packed.h"
#include "checkpoint/view.h"
#include "common/math/quant.h"
#include "common/math/threads.h"
#include "layout/unpack.h"

/* ---- plain ---- */

static const struct ck_tensor *find_weight(const struct checkpoint *c,
                                           const char *module, struct err *e)
{
    char name[1024];
    const struct ck_tensor *t = NULL;

    if ((size_t)snprintf(name, sizeof(name), "%s.weight", module) <
        sizeof(name))
        t = checkpoint_find(c, name);
    if (!t)
        err_set(e, E_DATA, "the checkpoint has no '%.200s.weight'", module);
    else if (t->ndim != 2 || !dtype_is_float(t->dtype)) {
        err_set(e, E_DATA, "'%.200s': is no matrix of floats", t->name);
        t = NULL;
    }
    return t;
}

/* *n = number of elements, which also fit as floats; false: overflow. */
static bool count_elements(const struct ck_tensor *t, size_t *n)
{
    size_t bytes;

    *n = t->bytes / (dtype_bits(t->dtype) / 8);
    return !size_mul(*n, sizeof(double), &bytes);
}

static int read_floats(struct checkpoint *c, const struct ck_tensor *t,
                       float **out, struct err *e)
{
    const struct ck_entry *en = t->where;
    void *raw = NULL;
    float *w = NULL;
    size_t n;

    if (!count_elements(t, &n))
        return err_set(e, E_TEMP, "'%.200s': too large", t->name);
    if (c->looks) {
        *out = mem_zero(n, sizeof(**out), t->name, e);
        return *out ? 0 : e->code;
    }
    w = mem_pages(n * sizeof(*w), t->name, e);
    if (w && en->scale) {
        if (view_read_scaled(c, en, DT_F32, w, e)) {
            free(w);
            return e->code;
        }
        *out = w;
        return 0;
    }
    if (t->dtype != DT_F32)
        raw = mem_pages(t->bytes, t->name, e);
    if (!w || (t->dtype != DT_F32 && !raw) ||
        checkpoint_read(c, t, raw ? raw : w, e)) {
        free(w);
        free(raw);
        return e->code;
    }
    if (raw && !to_f32(w, raw, t->dtype, n))
        err_set(e, E_BUG, "'%.200s': no float", t->name);
    free(raw);
    *out = w;
    return 0;
}

/* ---- in 4 or 8 bits ---- */

struct dequantize {
    const struct packed *p;
    const float *scale; /* [rows, groups] */
    float *w;
};

/* A row's code of input k. */
static int code_at(const uint32_t *word, const struct packed *p, uint64_t k)
{
    return p->bits == 8 ? word[k / 4] >> 8 * (k % 4) & 255 :
                          word[k / 8] >> 4 * (k % 8) & 15;
}

/* One row by groups: in 4 bits the sixteen values of a group are looked up by
 * code. */
static void group_row(float *w, const uint32_t *word, const struct packed *p,
                      const uint8_t *zero, const float *scale)
{
    for (uint64_t g = 0, k = 0; g < p->groups; g++) {
        uint64_t end = p->cols - k < p->group ? p->cols : k + p->group;
        float value[16];

        for (; p->bits == 8 && k < end; k++)
            w[k] = (float)(code_at(word, p, k) - zero[g]) * scale[g];
        for (int code = 0; code < 16; code++)
            value[code] = (float)(code - zero[g]) * scale[g];
        for (; k < end; k++)
            w[k] = value[code_at(word, p, k)];
    }
}

static void index_row(float *w, const uint32_t *word, const struct packed *p,
                      const uint8_t *zero, const float *scale)
{
    for (uint64_t k = 0; k < p->cols; k++) {
        int32_t g = p->g_idx[k];

        w[k] = (float)(code_at(word, p, k) - zero[g]) * scale[g];
    }
}

static void dequantize_rows(void *arg, size_t begin, size_t end)
{
    const struct dequantize *d = arg;
    const struct packed *p = d->p;

    for (size_t o = begin; o < end; o++)
        (p->g_idx ? index_row : group_row)(
            d->w + o * p->cols, p->codes + o * unpack_words(p->cols, p->bits),
            p, p->zeros + o * p->groups, d->scale + o * p->groups);
}

static int dequantize(const struct packed *p, const char *module, float *w,
                      struct err *e)
{
    size_t n = p->rows * p->groups;
    float *scale = mem_alloc(n * sizeof(*scale), module, e);
    struct dequantize d = { p, scale, w };

    if (!scale)
        return e->code;
    if (!to_f32(scale, p->scales, p->scale_dtype, n)) {
        free(scale);
        return err_set(e, E_BUG, "'%.200s': scales are no floats", module);
    }
    threads_for(p->rows, 1 + 65536 / p->cols, dequantize_rows, &d);
    free(scale);
    return 0;
}

static int packed_floats(struct checkpoint *c, const char *module, float **w,
                         uint64_t *rows, uint64_t *cols, struct err *e)
{
    struct packed p;
    int r = packed_read(c, module, &p, e);

    if (r <= 0)
        return r;
    *w = mem_pages(p.rows * p.cols * sizeof(**w), module, e);
    r = *w ? dequantize(&p, module, *w, e) : e->code;
    if (r)
        free(*w);
    *rows = p.rows;
    *cols = p.cols;
    packed_release(&p);
    return r ? r : 1;
}

/* ---- the interface ---- */

int checkpoint_linear(struct checkpoint *c, const char *module, float **w,
                      uint64_t *rows, uint64_t *cols, struct err *e)
{
    const struct ck_tensor *t;
    int r = packed_floats(c, module, w, rows, cols, e);

    if (r)
        return r < 0 ? r : 0;
    if (!(t = find_weight(c, module, e)))
        return e->code;
    *rows = t->dims[0];
    *cols = t->dims[1];
    return read_floats(c, t, w, e);
}

int checkpoint_linear_bf16(struct checkpoint *c, const char *module,
                           uint16_t **w, uint64_t *rows, uint64_t *cols,
                           struct err *e)
{
    const struct ck_tensor *t;
    float *wide = NULL;
    int r = packed_floats(c, module, &wide, rows, cols, e);

    if (r < 0)
        return r;
    if (!r) {
        if (!(t = find_weight(c, module, e)))
            return e->code;
        *rows = t->dims[0];
        *cols = t->dims[1];
        if (c->looks) {
            *w = mem_zero(1, sizeof(**w), module, e);
            return *w ? 0 : e->code;
        }
        if (t->dtype != DT_BF16) {
            r = read_floats(c, t, &wide, e);
        } else if (!(*w = mem_pages(t->bytes, t->name, e)) ||
                   (r = checkpoint_read(c, t, *w, e))) {
            free(*w);
            *w = NULL; /* the caller must not free it again */
            return e->code;
        }
        if (r || !wide)
            return r;
    }
    *w = mem_pages(*rows * *cols * sizeof(**w), module, e);
    r = *w ? 0 : e->code;
    if (*w && !from_f32(*w, DT_BF16, wide, *rows * *cols))
        r = err_set(e, E_BUG, "'%.200s': no bf16", module);
    free(wide);
    return r;
}

int checkpoint_linear_fp8(struct checkpoint *c, const char *module,
                          struct fp8_matrix *m, struct err *e)
{
    const struct ck_tensor *t;
    struct err none;
    float *scale;
    void *codes;

    t = find_weight(c, module, &none); /* or it is stored in 4 bits */
    if (!t || !checkpoint_fp8(t, m))
        return 0;
    codes = mem_pages(m->rows * m->cols, t->name, e);
    scale = mem_alloc(fp8_down(m) * fp8_across(m) * sizeof(*scale), t->name, e);
    if (!codes || !scale || checkpoint_read_fp8(c, t, codes, scale, e)) {
        free(codes);
        free(scale);
        return e->code;
    }
    m->data = codes;
    m->scale = scale;
    return 1;
}

static int shape_differs(const char *module, struct err *e)
{
    return err_set(e, E_DATA, "'%s' has another shape than in the source",
                   module);
}

/* All of the weight, and of that the sample. */
static int pick_rows(struct checkpoint *c, const char *module,
                     const struct ck_rows *s, uint64_t rows, uint64_t cols,
                     uint16_t **w, struct err *e)
{
    uint64_t have, wide;

    if (checkpoint_linear_bf16(c, module, w, &have, &wide, e) < 0)
        return e->code;
    if (have != rows || wide != cols) {
        free(*w);
        *w = NULL;
        return shape_differs(module, e);
    }
    for (uint64_t i = 0; i < s->n; i++)
        memmove(*w + i * cols, *w + ck_row(s, i) * cols, cols * sizeof(**w));
    return 0;
}

int checkpoint_linear_rows(struct checkpoint *c, const char *module,
                           const struct ck_rows *s, uint64_t rows,
                           uint64_t cols, uint16_t **w, struct err *e)
{
    char name[1024];
    const struct ck_tensor *t;
    int rc = 0;

    snprintf(name, sizeof(name), "%s.weight", module);
    t = checkpoint_find(c, name);
    if (!t || t->ndim != 2 || t->dtype != DT_BF16 || !checkpoint_has_rows(t))
        return pick_rows(c, module, s, rows, cols, w, e);
    if (t->dims[0] != rows || t->dims[1] != cols)
        return shape_differs(module, e);
    *w = mem_pages(s->n * cols * sizeof(**w), module, e);
    if (!*w)
        return e->code;
    for (uint64_t i = 0; i < s->n && !rc; i += s->run)
        rc = checkpoint_read_rows(c, t, ck_row(s, i),
                                  s->n - i < s->run ? s->n - i : s->run,
                                  *w + i * cols, e);
    if (rc) {
        free(*w);
        *w = NULL;
    }
    return rc;
}

int checkpoint_vector(struct checkpoint *c, const char *name, uint64_t n,
                      float **v, struct err *e)
{
    const struct ck_tensor *t = checkpoint_find(c, name);
    size_t have;

    if (!t)
        return err_set(e, E_DATA, "the checkpoint has no '%.200s'", name);
    if (!dtype_is_float(t->dtype) || !count_elements(t, &have) || have != n)
        return err_set(e, E_DATA,
                       "'%.200s': is not %" PRIu64 " floats, as config.json "
                       "wants",
                       name, n);
    return read_floats(c, t, v, e);
}

/* Rows of whole words to rows of cols codes, in place. */
static void close_rows(struct packed *p)
{
    uint8_t *bytes = (uint8_t *)p->codes;
    size_t wide = unpack_words(p->cols, p->bits) * 4;
    size_t row = quant_row_bytes(p->cols, p->bits);

    for (uint64_t o = 1; o < p->rows && wide != row; o++)
        memmove(bytes + o * row, bytes + o * wide, row);
}

int checkpoint_quantized(struct checkpoint *c, const char *module,
                         struct ck_quantized *q, struct err *e)
{
    struct packed p;
    int r = packed_read(c, module, &p, e);

    memset(q, 0, sizeof(*q));
    if (r <= 0)
        return r;
    if (p.cols % 2) {
        err_set(e, E_DATA, "'%.200s': an odd number of inputs", module);
        packed_release(&p);
        return e->code;
    }
    close_rows(&p);
    q->rows = p.rows;
    q->cols = p.cols;
    q->groups = p.groups;
    q->group = p.group;
    q->bits = p.bits;
    q->codes = (uint8_t *)p.codes;
    q->zeros = p.zeros;
    q->scale_dtype = p.scale_dtype;
    q->scales = p.scales;
    q->g_idx = p.g_idx;
    return 1;
}

void ck_quantized_release(struct ck_quantized *q)
{
    free(q->codes);
    free(q->zeros);
    free(q->scales);
    free(q->g_idx);
    memset(q, 0, sizeof(*q));
}
