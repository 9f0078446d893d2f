/* view.c - see view.h. */
#include "checkpoint/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "checkpoint/fused.h"
#include "checkpoint/mxfp4.h"
#include "checkpoint/wrapped.h"

enum { DEFAULT_BLOCK = 128 };

/* ---- which scale belongs to which weight ---- */

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);

    return n > m && strcmp(s + n - m, suffix) == 0;
}

static bool is_fp8_weight(const struct ck_entry *en)
{
    return (en->dtype == DT_F8_E4M3 || en->dtype == DT_F8_E5M2) &&
           en->ndim == 2 && ends_with(en->name, ".weight");
}

static bool any_fp8(const struct ck_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        if (is_fp8_weight(&l->item[i]))
            return true;
    return false;
}

/* For X.weight the entry X.SUFFIX; NULL: none. */
static struct ck_entry *sibling(const struct checkpoint *c,
                                const struct ck_entry *en, const char *suffix)
{
    const struct ck_tensor *t;
    char name[1024];
    int n =
        snprintf(name, sizeof(name), "%.*s.%s",
                 (int)(strlen(en->name) - strlen(".weight")), en->name, suffix);

    t = n > 0 && (size_t)n < sizeof(name) ? checkpoint_find(c, name) : NULL;
    return t ? &c->list.item[t - c->tensor] : NULL;
}

static uint64_t blocks(uint64_t n, uint64_t block)
{
    return n / block + (n % block != 0);
}

/* Whether s has one scale for each block of rows x cols; if so, set en's block
 * size. */
static bool try_block(struct ck_entry *en, const struct ck_entry *s,
                      uint64_t rows, uint64_t cols)
{
    uint64_t count = 1, wide = blocks(en->dims[1], cols);

    for (int i = 0; i < s->ndim; i++)
        count *= s->dims[i]; /* cannot overflow: its size was checked */
    if (count != blocks(en->dims[0], rows) * wide ||
        (count > 1 && s->dims[0] != blocks(en->dims[0], rows)) ||
        (count > 1 && wide > 1 && (s->ndim != 2 || s->dims[1] != wide)))
        return false;
    en->block_rows = rows;
    en->block_cols = cols;
    return true;
}

/* The block size that the configuration gives, else the one that fits: one
 * scale for all, one per output, blocks of 128 x 128. */
static int find_block(const struct checkpoint *c, struct ck_entry *en,
                      const struct ck_entry *s, struct err *e)
{
    const int64_t *block = c->quant.block;
    uint64_t rows = en->dims[0], cols = en->dims[1];

    if (!rows || !cols)
        return err_set(e, E_DATA, "'%.200s': is empty", en->name);
    if (!dtype_is_float(s->dtype))
        return err_set(e, E_DATA, "'%.200s': scales of type %s", s->name,
                       dtype_name(s->dtype));
    if ((block[0] > 0 &&
         try_block(en, s, (uint64_t)block[0], (uint64_t)block[1])) ||
        try_block(en, s, rows, cols) || try_block(en, s, 1, cols) ||
        (!block[0] && try_block(en, s, DEFAULT_BLOCK, DEFAULT_BLOCK)))
        return 0;
    return err_set(e, E_DATA,
                   "'%.200s': %d dimensions of %" PRIu64 " and %" PRIu64
                   " are no scales of %" PRIu64 "x%" PRIu64 " weights",
                   s->name, s->ndim, s->ndim > 0 ? s->dims[0] : 1,
                   s->ndim > 1 ? s->dims[1] : 1, rows, cols);
}

/* Whether it is k_proj or v_proj of a layer that uses the keys and values of
 * another one. */
static bool is_unused(const struct checkpoint *c, const char *name)
{
    struct tensor_name n;

    if (c->keys_end <= 0)
        return false;
    tensor_name_parse(&n, name);
    return n.layer >= c->keys_end &&
           (!strncmp(n.part.at, "self_attn.k_proj", 16) ||
            !strncmp(n.part.at, "self_attn.v_proj", 16));
}

static const char *const scale_names[] = { "weight_scale_inv", "weight_scale" };

/* For each weight its scale: of[i] is 1 + its index, 0: none; hidden[]:
 * entries that do not appear. */
static int pair(struct checkpoint *c, size_t *of, bool *hidden, struct err *e)
{
    for (size_t i = 0; i < c->list.count; i++) {
        struct ck_entry *en = &c->list.item[i], *s = NULL;

        if ((c->quant.fp8 && tensor_name_is_other_scale(en->name)) ||
            is_unused(c, en->name))
            hidden[i] = true;
        if (ends_with(en->name, ".weight_scale_inv") && !hidden[i]) {
            char name[1024];
            const struct ck_tensor *t;
            int n = (int)(strlen(en->name) - strlen("_scale_inv"));

            snprintf(name, sizeof(name), "%.*s", n, en->name);
            t = checkpoint_find(c, name);
            if (!t || !is_fp8_weight(t->where))
                return err_set(e, E_DATA,
                               "'%.200s': there is no weight of 8-bit floats "
                               "for it",
                               en->name);
        }
        if (!is_fp8_weight(en))
            continue;
        for (size_t k = 0; k < ARRAY_LEN(scale_names) && !s; k++)
            s = sibling(c, en, scale_names[k]);
        if (!s && c->quant.fp8)
            return err_set(e, E_DATA,
                           "'%.200s': 8-bit floats without a scale (%s or "
                           "%s)",
                           en->name, scale_names[0], scale_names[1]);
        if (!s) /* values without scale */
            continue;
        if (find_block(c, en, s, e))
            return e->code;
        of[i] = (size_t)(s - c->list.item) + 1;
        hidden[of[i] - 1] = true;
        if ((s = sibling(c, en, "input_scale")))
            hidden[s - c->list.item] = true;
    }
    return 0;
}

/* Move hidden entries to c->aside; at[i]: index of entry i in its new list. */
static int set_aside(struct checkpoint *c, const size_t *of, const bool *hidden,
                     size_t *at, struct err *e)
{
    size_t n = c->list.count, shown = 0, aside = 0;

    for (size_t i = 0; i < n; i++)
        at[i] = hidden[i] ? aside++ : shown++;
    c->aside.item = mem_zero(aside, sizeof(*c->aside.item), "checkpoint", e);
    if (!c->aside.item)
        return e->code;
    c->aside.count = c->aside.cap = aside;
    for (size_t i = 0; i < n; i++)
        if (of[i])
            c->list.item[i].scale = &c->aside.item[at[of[i] - 1]];
    for (size_t i = 0; i < n; i++)
        (hidden[i] ? &c->aside : &c->list)->item[at[i]] = c->list.item[i];
    c->list.count = shown;
    return 0;
}

static int pair_fp8(struct checkpoint *c, struct err *e)
{
    size_t n = c->list.count, *of, *at;
    bool *hidden;
    int r;

    if (!any_fp8(&c->list) && !c->quant.fp8 && c->keys_end <= 0)
        return 0;
    of = mem_zero(n, sizeof(*of), "checkpoint", e);
    at = mem_zero(n, sizeof(*at), "checkpoint", e);
    hidden = mem_zero(n, sizeof(*hidden), "checkpoint", e);
    r = of && at && hidden ? pair(c, of, hidden, e) : e->code;
    if (!r)
        r = set_aside(c, of, hidden, at, e);
    free(of);
    free(at);
    free(hidden);
    return r ? r : 1;
}

int view_apply(struct checkpoint *c, struct err *e)
{
    int r = wrapped_rename(c, e);

    if (r < 0 || (r && checkpoint_index(c, e)))
        return e->code;
    r = fused_split(c, e);
    if (r < 0 || (r && checkpoint_index(c, e)))
        return e->code;
    return pair_fp8(c, e);
}

/* ---- reading ---- */

/* The scales of en as floats, malloced. */
static float *read_scale(struct checkpoint *c, const struct ck_entry *en,
                         struct err *e)
{
    const struct ck_entry *s = en->scale;
    size_t n = s->bytes / (dtype_bits(s->dtype) / 8);
    void *raw = mem_alloc(s->bytes, s->name, e);
    float *v = mem_alloc(n * sizeof(*v), s->name, e);

    if (!raw || !v || checkpoint_entry(c, s, raw, e)) {
        free(v);
        v = NULL;
    } else if (!to_f32(v, raw, s->dtype, n)) {
        err_set(e, E_BUG, "'%.200s': no float", s->name);
        free(v);
        v = NULL;
    }
    free(raw);
    return v;
}

static int read_mxfp4(struct checkpoint *c, const struct ck_entry *en,
                      enum dtype want, void *buf, struct err *e)
{
    const struct ck_entry *s = en->scale;
    uint8_t *code = mem_pages(en->bytes, en->name, e);
    uint8_t *scale = mem_alloc(s->bytes, en->name, e);
    int r = code && scale ? checkpoint_entry(c, s, scale, e) : e->code;

    if (!r)
        r = checkpoint_entry(c, en, code, e);
    if (!r)
        mxfp4_decode(buf, want, code, scale, s->bytes);
    free(code);
    free(scale);
    return r;
}

static struct fp8_matrix shape_of(const struct ck_entry *en)
{
    return (struct fp8_matrix){ .dtype = en->dtype,
                                .rows = en->dims[0],
                                .cols = en->dims[1],
                                .block_rows = en->block_rows,
                                .block_cols = en->block_cols };
}

/* The codes of en into data, and its scales, malloced: both are *m's. */
static int read_fp8(struct checkpoint *c, const struct ck_entry *en, void *data,
                    struct fp8_matrix *m, struct err *e)
{
    *m = shape_of(en);
    m->data = data;
    m->scale = read_scale(c, en, e);
    return m->scale ? checkpoint_entry(c, en, data, e) : e->code;
}

int view_read_scaled(struct checkpoint *c, const struct ck_entry *en,
                     enum dtype want, void *buf, struct err *e)
{
    struct fp8_matrix m;
    void *data;
    int r;

    if (en->mxfp4)
        return read_mxfp4(c, en, want, buf, e);
    if (!(data = mem_pages(en->bytes, en->name, e)))
        return e->code;
    r = read_fp8(c, en, data, &m, e);
    if (!r && want == DT_BF16)
        fp8_to_bf16(buf, &m);
    else if (!r)
        fp8_to_f32(buf, &m);
    free((void *)m.scale);
    free(data);
    return r;
}

bool checkpoint_fp8(const struct ck_tensor *t, struct fp8_matrix *m)
{
    const struct ck_entry *en = t->where;

    if (!en->scale || en->mxfp4 || en->pick)
        return false;
    *m = shape_of(en);
    return true;
}

int checkpoint_read_fp8(struct checkpoint *c, const struct ck_tensor *t,
                        void *codes, float *scales, struct err *e)
{
    struct fp8_matrix m;
    int r = read_fp8(c, t->where, codes, &m, e);

    if (!r)
        memcpy(scales, m.scale,
               fp8_down(&m) * fp8_across(&m) * sizeof(*scales));
    free((void *)m.scale);
    return r;
}

int view_most_scaled(struct checkpoint *c, const struct ck_entry *en,
                     void **buf, size_t *cap, float *most, struct err *e)
{
    struct fp8_matrix m;
    int r;

    if (mem_reserve(buf, cap, en->bytes, en->name, e) < 0)
        return e->code;
    r = read_fp8(c, en, *buf, &m, e);
    if (!r)
        *most = fp8_most(&m);
    free((void *)m.scale);
    return r;
}
