/* backward.c - see backward.h and backward_parts.h: the device, weights, rows,
 * norms. */
#include "model/backward.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "model/backward_parts.h"

/* ---- the device ---- */

static int use(struct model *m, struct cuda_context *c, const char *what,
               double need, struct err *e)
{
    struct plugin_table t = { BACKWARD_TABLE, BACKWARD_TABLE_VERSION, NULL };
    const struct forward_table *on = forward_functions();

    if (model_check_lacks(m, 0, e) < 0 || plugin_load(&t, NULL, e) < 0 ||
        device_fits(on, c, what, need, e) < 0)
        return e->code;
    m->on = on;
    m->context = c;
    m->back = t.functions;
    m->back_bytes = gradient_device_bytes(&m->config, m->size);
    return 0;
}

int backward_use_device(struct model *m, const char *what, double need,
                        struct err *e)
{
    struct cuda_context *c = device_gpu();
    int rc = c ? use(m, c, what, need, e) : 0;

    return rc < 0 && device_declined(&rc, e) ? 0 : rc;
}

/* ---- memory ---- */

int backward_spare_bytes(const struct model *m, size_t *n, struct err *e)
{
    size_t room;

    if (m->on->room(m->context, &room, e) < 0)
        return e->code;
    *n = m->back_bytes < (double)room ? room - (size_t)m->back_bytes : 0;
    return 0;
}

static int open_device(struct token_rows *t, size_t n, struct err *e)
{
    const struct model *m = t->m;
    size_t spare;
    void *p;
    int rc = backward_spare_bytes(m, &spare, e);

    if (rc < 0)
        return rc;
    rc = n <= spare ? model_alloc(m, &p, n, false, NULL, e) :
                      m->back->pinned(m->context, &p, n, e);
    t->p = rc < 0 ? NULL : p;
    return rc;
}

int token_rows_open(struct token_rows *t, const struct model *m,
                    const char *dir, int64_t n, struct err *e)
{
    size_t bytes;

    *t = (struct token_rows){ .m = m };
    region_init(&t->region, dir);
    if (size_mul((size_t)n, sizeof(float), &bytes))
        return err_set(e, E_TEMP, "gradients: too many tokens");
    if (m->on)
        return open_device(t, bytes, e);
    if (region_reserve(&t->region, bytes, e) < 0)
        return e->code;
    t->p = t->region.p;
    return 0;
}

void token_rows_close(struct token_rows *t)
{
    if (t->m && t->m->on)
        model_free(t->m, t->p);
    region_release(&t->region);
    *t = (struct token_rows){ 0 };
}

int backward_zero(const struct model *m, void *p, size_t n, struct err *e)
{
    if (m->on)
        return m->on->zero(m->context, p, n, e);
    memset(p, 0, n);
    return 0;
}

int backward_rows(const struct model *m, struct buffer *b, const void *x,
                  bool there, int64_t n, const void **to, struct err *e)
{
    int64_t h = m->config.hidden_size;

    *to = x;
    if (!m->on || there)
        return 0;
    if (model_reserve(m, b, n, h, m->size, "gradients", e) < 0)
        return e->code;
    *to = b->p;
    return model_put(m, b->p, x, (size_t)(n * h) * m->size, e);
}

int backward_narrow(const struct model *m, const float *g, int64_t n, void *to,
                    struct err *e)
{
    return backward_of(m)->narrow(m->context, m->dtype, g, n, to, e);
}

int backward_get(const struct model *m, const float *g, int64_t n,
                 struct buffer *room, void *to, struct err *e)
{
    if (!m->on)
        return backward_narrow(m, g, n, to, e);
    if (model_reserve(m, room, n, 1, m->size, "gradients", e) < 0 ||
        backward_narrow(m, g, n, room->p, e) < 0)
        return e->code;
    return model_get(m, to, room->p, (size_t)n * m->size, e);
}

/* ---- weights ---- */

int backward_vector(struct model *m, const char *name, int64_t n, float **v,
                    struct err *e)
{
    return model_vector(m, name, n, v, e) < 0 ?
               e->code :
               model_place(m, (void **)v, (size_t)n * sizeof(**v), e);
}

int backward_norm_vector(struct model *m, int64_t layer, const char *module,
                         int64_t n, float **v, struct err *e)
{
    char part[MODULE_PATH_MAX], path[MODULE_PATH_MAX];

    snprintf(part, sizeof(part), "%s.weight", module);
    if (layer >= 0)
        layer_tensor_name(layer, part, path);
    return model_norm_vector(m, layer < 0 ? part : path, n, v, e) < 0 ?
               e->code :
               model_place(m, (void **)v, (size_t)n * sizeof(**v), e);
}

/* Move l->w, elements of the host, to where layers run: on the CPU widened to f32. */
static int place_weights(struct model *m, struct loaded *l, struct err *e)
{
    int64_t n = l->of.rows * l->of.cols;
    void *host = l->w;
    float *to;
    int rc;

    if (m->on) {
        rc = model_place(m, &l->w, (size_t)n * m->size, e);
        l->placed = rc < 0 ? NULL : m;
        return rc;
    }
    if (!m->bf16)
        return 0;
    to = mem_pages((size_t)n * sizeof(float), "weights", e);
    rc = to ? widen_cpu(NULL, m->dtype, host, n, to, e) : e->code;
    free(host);
    l->w = to;
    return rc;
}

int backward_read(struct model *m, struct loaded *l, struct err *e)
{
    const struct linear *k = &l->of;

    return model_tuned_there(m, k->module) ?
               0 :
               model_weight(m, k->module, k->rows, k->cols, &l->w, e);
}

int backward_place(struct model *m, struct loaded *l, struct err *e)
{
    const struct linear *k = &l->of;
    const void *there = model_tuned_there(m, k->module);
    char name[MODULE_PATH_MAX + 8];

    if (there) {
        l->w = (void *)(uintptr_t)there;
        l->borrowed = true;
        l->placed = m;
    } else if (place_weights(m, l, e) < 0)
        return e->code;
    snprintf(name, sizeof(name), "%s.bias", k->module);
    return k->bias ? backward_vector(m, name, k->rows, &l->bias, e) : 0;
}

int backward_load(struct model *m, struct loaded *l, struct err *e)
{
    return backward_read(m, l, e) < 0 ? e->code : backward_place(m, l, e);
}

/* ---- the residual stream's norm ---- */

int backward_stream(const struct model *m, const void *x, const float *w,
                    const float *gy, int64_t n, float *g, bool replace,
                    struct err *e)
{
    int64_t h = m->config.hidden_size;
    struct backward_norm j = { .dtype = m->dtype,
                               .rows = n,
                               .n = h,
                               .x = x,
                               .ld = h,
                               .w = w,
                               .eps = m->config.rms_eps,
                               .gy = gy,
                               .g = g,
                               .ldg = h,
                               .add = !replace };

    return w ? backward_of(m)->norm(m->context, &j, e) :
               backward_of(m)->scale(m->context, gy, 1, !replace, n * h, g, e);
}

/* ---- what a layer adds ---- */

/* Rows of backward_output(); w: the norm's weights, or NULL. */
static int output_part(const struct model *m, const struct backward_output *o,
                       int64_t at, int64_t n, const float *w,
                       struct buffer *rows, struct err *e)
{
    int64_t h = m->config.hidden_size;
    float by = (float)m->config.residual_scale;
    const float *g = o->g + at * h;
    float *to = o->to + at * h;
    const void *y = NULL;

    if (by != 1 || !w) {
        if (backward_of(m)->scale(m->context, g, by, false, n * h, to, e) < 0)
            return e->code;
        g = to;
    }
    if (!w)
        return 0;
    return backward_rows(m, rows,
                         (const char *)o->y + (size_t)(at * h) * m->size,
                         o->there, n, &y, e) < 0 ?
               e->code :
               backward_stream(m, y, w, g, n, to, true, e);
}

int backward_output(struct model *m, const struct backward_output *o,
                    struct err *e)
{
    const struct layer_norms *norms = model_norms(&m->config);
    const char *norm = o->attention ? norms->attn_out : norms->mlp_out;
    struct buffer rows = { 0 };
    float *w = NULL;
    int rc = norm ? backward_norm_vector(m, o->layer, norm,
                                         m->config.hidden_size, &w, e) :
                    0;

    for (int64_t i = 0; i < o->n && rc >= 0; i += GRADIENT_ROWS)
        rc = output_part(m, o, i,
                         o->n - i < GRADIENT_ROWS ? o->n - i : GRADIENT_ROWS, w,
                         &rows, e);
    model_free(m, w);
    model_buffer_release(m, &rows);
    return rc;
}
