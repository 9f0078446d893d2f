/* weights.c - see weights.h. */
#include "checkpoint/weights.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"

/* ---- choosing ---- */

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);

    return n > m && strcmp(s + n - m, suffix) == 0;
}

static bool in_layers(const struct weights_choice *ch, int64_t layer)
{
    if (layer < 0)
        return ch->rest || ch->layer < 0;
    return ch->layer < 0 ? !ch->rest : layer == ch->layer;
}

static bool any_glob(const char *const *glob, int n, const char *name,
                     const char *module)
{
    for (int i = 0; i < n; i++)
        if (fnmatch(glob[i], name, 0) == 0 || fnmatch(glob[i], module, 0) == 0)
            return true;
    return false;
}

static bool in_share(const struct weights_choice *ch, const char *name)
{
    struct tensor_name at;

    if (!ch->shares)
        return true;
    tensor_name_parse(&at, name);
    return at.expert >= 0 && at.expert % ch->shares == ch->share;
}

static bool is_chosen(const struct weights_choice *ch, const char *name,
                      const char *module, int64_t n_layers)
{
    int64_t layer = tensor_name_layer(name);

    return in_layers(ch, layer < n_layers ? layer : -1) && in_share(ch, name) &&
           (!ch->n_match || any_glob(ch->match, ch->n_match, name, module)) &&
           !any_glob(ch->exclude, ch->n_exclude, name, module);
}

static int check_shape(const struct ck_tensor *t, const struct linear *lin,
                       struct err *e)
{
    if (!dtype_is_float(t->dtype))
        return err_set(e, E_DATA, "'%.200s': a weight of type %s", t->name,
                       dtype_name(t->dtype));
    if (t->ndim != 2 || t->dims[0] != (uint64_t)lin->rows ||
        t->dims[1] != (uint64_t)lin->cols)
        return err_set(e, E_DATA,
                       "'%.200s': its shape is not %" PRId64 "x%" PRId64
                       ", as config.json says",
                       t->name, lin->rows, lin->cols);
    return 0;
}

/* Whether the module is a linear that is to be quantized. */
static bool is_quantized(const struct weights_plan *p,
                         const struct weights_choice *ch, const char *module,
                         struct linear *lin)
{
    return model_find_linear(p->config, module, lin) &&
           module_chosen(&ch->quantized, module);
}

/* 1: *it is selected; 0: not. */
static int choose(struct weights_plan *p, const struct weights_choice *ch,
                  const struct ck_tensor *t, struct weights_item *it,
                  struct err *e)
{
    char module[1024], name[1100];
    struct linear lin;
    bool first;

    it->t = t;
    it->kind = WEIGHTS_OTHER;
    if (checkpoint_part(p->c, t, module, sizeof(module), &first)) {
        it->kind = WEIGHTS_PACKED;
        snprintf(name, sizeof(name), "%s.weight", module);
        return first && is_chosen(ch, name, module, p->config->n_layers) &&
               !(is_quantized(p, ch, module, &lin) ? ch->others : ch->linears);
    }
    snprintf(module, sizeof(module), "%s", t->name);
    if (ends_with(module, ".weight") && strlen(t->name) < sizeof(module))
        module[strlen(module) - strlen(".weight")] = '\0';
    if (!is_chosen(ch, t->name, module, p->config->n_layers))
        return 0;
    if (ends_with(t->name, "rotary_emb.inv_freq")) {
        p->dropped++;
        return 0;
    }
    if (strcmp(module, t->name) != 0 && is_quantized(p, ch, module, &lin)) {
        it->kind = WEIGHTS_LINEAR;
        return check_shape(t, &lin, e) ? e->code : !ch->others;
    }
    return !ch->linears;
}

/* The tensor that stands for a linear, its weight or its codes; NULL: none. */
static const struct ck_tensor *find_linear(const struct weights_plan *p,
                                           const char *module)
{
    static const char *const parts[] = { "weight", "qweight", "weight_packed",
                                         "weight_int4pack" };
    const struct ck_tensor *t = NULL;
    char name[MODULE_PATH_MAX + 32];

    for (size_t i = 0; i < ARRAY_LEN(parts) && !t; i++) {
        snprintf(name, sizeof(name), "%.255s.%s", module, parts[i]);
        t = checkpoint_find(p->c, name);
    }
    return t;
}

/* E_DATA unless every linear of layer i is there. */
static int check_layer(const struct weights_plan *p, int64_t i, struct err *e)
{
    int64_t n = model_linear_count(p->config, i);
    struct linear lin;

    for (int64_t k = 0; k < n; k++) {
        model_linear(p->config, i, k, &lin);
        if (!find_linear(p, lin.module))
            return err_set(e, E_DATA, "the checkpoint has no '%s.weight'",
                           lin.module);
    }
    return 0;
}

static int check_layers(const struct weights_plan *p,
                        const struct weights_choice *ch, struct err *e)
{
    int r = 0;

    if (ch->layer >= p->config->n_layers)
        return err_set(e, E_CONFIG,
                       "no layer %" PRId64 " in a model of %" PRId64 " layers",
                       ch->layer, p->config->n_layers);
    for (int64_t i = 0; i < p->config->n_layers && !r; i++)
        if (in_layers(ch, i))
            r = check_layer(p, i, e);
    return r;
}

int weights_plan(struct weights_plan *p, struct checkpoint *c,
                 const struct model_config *config,
                 const struct weights_choice *ch, struct err *e)
{
    size_t n = checkpoint_count(c);
    int r;

    memset(p, 0, sizeof(*p));
    p->c = c;
    p->config = config;
    p->dequantize = ch->dequantize;
    if ((r = check_layers(p, ch, e)))
        return r;
    if ((ch->quantized.n_modules || ch->quantized.n_skip) &&
        (r = module_choice_check(&ch->quantized, config, e)))
        return r;
    p->item = mem_zero(n, sizeof(*p->item), "weights", e);
    if (!p->item)
        return e->code;
    for (size_t i = 0; i < n; i++) {
        r = choose(p, ch, checkpoint_tensor(c, i), &p->item[p->count], e);
        if (r < 0)
            return r;
        p->count += (size_t)r;
    }
    if (!p->count)
        return err_set(e, E_CONFIG,
                       "no tensor of the model is chosen by "
                       "these options");
    return 0;
}

void weights_release(struct weights_plan *p)
{
    free(p->item);
    free(p->buf);
    memset(p, 0, sizeof(*p));
}

/* ---- writing ---- */

static int set_name(struct frame *f, const char *name, size_t len,
                    struct err *e)
{
    if (len > FRAME_NAME_MAX)
        return err_set(e, E_DATA, "'%.100s...': a name of %zu bytes", name,
                       len);
    memcpy(f->name, name, len);
    f->name[len] = '\0';
    return 0;
}

int weights_frame(const struct weights_item *it, struct frame *f, struct err *e)
{
    const struct ck_tensor *t = it->t;
    size_t n = strlen(t->name);

    *f = (struct frame){
        .role = ROLE_TENSOR, .dtype = t->dtype, .ndim = t->ndim, .len = t->bytes
    };
    memcpy(f->dims, t->dims, sizeof(f->dims));
    if (it->kind == WEIGHTS_LINEAR) {
        f->role = ROLE_WEIGHT;
        n -= strlen(".weight");
    }
    return set_name(f, t->name, n, e);
}

static int write_stored(struct weights_plan *p, const struct weights_item *it,
                        struct stream_writer *w, uint64_t *bytes, struct err *e)
{
    const struct ck_tensor *t = it->t;
    struct frame f;
    int r = weights_frame(it, &f, e);

    if (r)
        return r;
    if (mem_reserve(&p->buf, &p->cap, t->bytes ? t->bytes : 1, t->name, e) < 0)
        return e->code;
    if ((r = checkpoint_read(p->c, t, p->buf, e)))
        return r;
    f.data = p->buf;
    *bytes += f.len;
    return stream_write(w, &f, e);
}

/* One tensor of a quantized linear. */
static int write_part(const struct ck_quantized *q, const char *module,
                      enum role role, struct stream_writer *w, uint64_t *bytes,
                      struct err *e)
{
    struct frame f = { .role = role, .ndim = 2 };
    int r = set_name(&f, module, strlen(module), e);
    uint64_t len;

    f.dtype = role == ROLE_SCALES ? q->scale_dtype :
              q->bits == 8        ? DT_U8 :
                                    DT_U4;
    f.dims[0] = q->rows;
    f.dims[1] = role == ROLE_CODES ? q->cols : q->groups;
    f.group = (uint32_t)q->group;
    f.scale_dtype = q->scale_dtype;
    f.data = role == ROLE_CODES  ? q->codes :
             role == ROLE_SCALES ? q->scales :
                                   q->zeros;
    if (r)
        return r;
    if (!dtype_size(f.dtype, 2, f.dims, &len))
        return err_set(e, E_DATA, "'%.200s': an odd number of zeros", module);
    f.len = len;
    *bytes += len;
    return stream_write(w, &f, e);
}

/* The group of each input, where groups are no runs of them. */
static int write_index(const struct ck_quantized *q, const char *module,
                       struct stream_writer *w, uint64_t *bytes, struct err *e)
{
    struct frame f = { .role = ROLE_INDEX,
                       .dtype = DT_I32,
                       .ndim = 1,
                       .dims = { q->cols },
                       .group = (uint32_t)q->group,
                       .data = q->g_idx,
                       .len = q->cols * sizeof(*q->g_idx) };
    int r = set_name(&f, module, strlen(module), e);

    *bytes += f.len;
    return r ? r : stream_write(w, &f, e);
}

static int write_parts(struct ck_quantized *q, const char *module,
                       struct stream_writer *w, uint64_t *bytes, struct err *e)
{
    size_t n = q->rows * q->groups;
    int r;

    for (size_t i = 0; q->bits == 4 && i + 1 < n; i += 2) /* in place */
        q->zeros[i / 2] = (uint8_t)(q->zeros[i] | q->zeros[i + 1] << 4);
    if ((r = write_part(q, module, ROLE_CODES, w, bytes, e)) ||
        (r = write_part(q, module, ROLE_SCALES, w, bytes, e)) ||
        (r = write_part(q, module, ROLE_ZEROS, w, bytes, e)))
        return r;
    return q->g_idx ? write_index(q, module, w, bytes, e) : 0;
}

/* A 4-bit linear of the model must have the shape of config.json. */
static int check_size(const struct model_config *config, const char *module,
                      uint64_t rows, uint64_t cols, struct err *e)
{
    struct linear lin;

    if (!model_find_linear(config, module, &lin) ||
        (rows == (uint64_t)lin.rows && cols == (uint64_t)lin.cols))
        return 0;
    return err_set(e, E_DATA,
                   "'%.200s': %" PRIu64 "x%" PRIu64
                   " packed weights, config.json says %" PRId64 "x%" PRId64,
                   module, rows, cols, lin.rows, lin.cols);
}

/* Change f, the frame of a linear, to that of the rows that a name says. */
static int cut(struct frame *f, const char *name, struct name_rows *rows,
               struct err *e)
{
    size_t len, row = f->dims[0] ? f->len / f->dims[0] : 0;

    if (!name_rows_of(name, &len, rows) || rows->of != f->dims[0])
        return err_set(e, E_DATA, "'%.255s': the linear has %" PRIu64 " rows",
                       name, f->dims[0]);
    f->dims[0] = rows->end - rows->first;
    f->len = f->dims[0] * row;
    return set_name(f, name, strlen(name), e);
}

/* Some rows of a linear that is stored as floats. */
static int write_rows(struct weights_plan *p, const struct weights_item *it,
                      const char *name, struct stream_writer *w,
                      uint64_t *bytes, struct err *e)
{
    const struct ck_tensor *t = it->t;
    bool alone = checkpoint_has_rows(t);
    struct name_rows rows;
    struct frame f;
    int r;

    if ((r = weights_frame(it, &f, e)) || (r = cut(&f, name, &rows, e)))
        return r;
    if (mem_reserve(&p->buf, &p->cap, alone ? f.len : t->bytes, name, e) < 0)
        return e->code;
    r = alone ?
            checkpoint_read_rows(p->c, t, rows.first, f.dims[0], p->buf, e) :
            checkpoint_read(p->c, t, p->buf, e);
    if (r)
        return r;
    f.data =
        (const char *)p->buf + (alone ? 0 : rows.first * (t->bytes / rows.of));
    *bytes += f.len;
    return stream_write(w, &f, e);
}

/* rows: name of the rows to write; NULL: all. */
static int write_floats(struct weights_plan *p, const char *module,
                        const char *rows, struct stream_writer *w,
                        uint64_t *bytes, struct err *e)
{
    struct name_rows at = { 0 };
    struct frame f = { .role = ROLE_WEIGHT, .dtype = DT_F32, .ndim = 2 };
    char name[1100];
    struct linear lin;
    float *v;
    int r;

    snprintf(name, sizeof(name), "%s", module);
    if (!model_find_linear(p->config, module, &lin)) {
        f.role = ROLE_TENSOR;
        snprintf(name, sizeof(name), "%s.weight", module);
    }
    if ((r = set_name(&f, name, strlen(name), e)) ||
        (r = checkpoint_linear(p->c, module, &v, &f.dims[0], &f.dims[1], e)))
        return r;
    f.len = f.dims[0] * f.dims[1] * sizeof(*v);
    r = check_size(p->config, module, f.dims[0], f.dims[1], e);
    if (!r && rows)
        r = cut(&f, rows, &at, e);
    f.data = v + at.first * f.dims[1];
    *bytes += f.len;
    if (!r)
        r = stream_write(w, &f, e);
    free(v);
    return r;
}

static int write_packed(struct weights_plan *p, const struct weights_item *it,
                        struct stream_writer *w, uint64_t *bytes, struct err *e)
{
    struct ck_quantized q;
    char module[1024];
    bool first;
    int r;

    if (!checkpoint_part(p->c, it->t, module, sizeof(module), &first))
        return err_set(e, E_BUG, "'%.200s': no part", it->t->name);
    if (p->dequantize)
        return write_floats(p, module, NULL, w, bytes, e);
    r = checkpoint_quantized(p->c, module, &q, e);
    if (r <= 0)
        return r < 0 ? r : err_set(e, E_BUG, "'%.200s': not packed", module);
    r = check_size(p->config, module, q.rows, q.cols, e);
    if (!r)
        r = write_parts(&q, module, w, bytes, e);
    ck_quantized_release(&q);
    return r;
}

static int write_item(struct weights_plan *p, const struct weights_item *it,
                      struct stream_writer *w, uint64_t *bytes, struct err *e)
{
    return it->kind == WEIGHTS_PACKED ? write_packed(p, it, w, bytes, e) :
                                        write_stored(p, it, w, bytes, e);
}

int weights_write(struct weights_plan *p, size_t i, struct stream_writer *w,
                  uint64_t *bytes, struct err *e)
{
    *bytes = 0;
    if (i + 1 < p->count)
        checkpoint_prefetch(p->c, p->item[i + 1].t);
    return write_item(p, &p->item[i], w, bytes, e);
}

int weights_module(struct weights_plan *p, const struct weights_choice *ch,
                   const char *module, struct weights_item *it, struct err *e)
{
    const struct ck_tensor *t = find_linear(p, module);
    int r;

    if (!t)
        return err_set(e, E_DATA, "the checkpoint has no '%.255s.weight'",
                       module);
    if (!module_chosen(&ch->quantized, module))
        return 0;
    r = choose(p, ch, t, it, e);
    if (r > 0 && it->kind == WEIGHTS_OTHER)
        r = err_set(e, E_DATA, "'%.255s' is no linear of the model", module);
    return r;
}

int weights_write_module(struct weights_plan *p,
                         const struct weights_choice *ch, const char *name,
                         struct stream_writer *w, uint64_t *bytes,
                         struct err *e)
{
    char module[FRAME_NAME_MAX + 1];
    struct weights_item it;
    struct name_rows rows;
    size_t len;
    bool some = name_rows_of(name, &len, &rows);
    int r;

    *bytes = 0;
    snprintf(module, sizeof(module), "%.*s", (int)len, name);
    if ((r = weights_module(p, ch, module, &it, e)) <= 0)
        return r;
    r = !some                     ? write_item(p, &it, w, bytes, e) :
        it.kind == WEIGHTS_LINEAR ? write_rows(p, &it, name, w, bytes, e) :
                                    write_floats(p, module, name, w, bytes, e);
    return r ? r : 1;
}
