/* tuned_there.c - see tuned_there.h. */
#include "tune/tuned_there.h"

#include <stdlib.h>

#include "device/device.h"

int tuned_there_open(const struct tune_table **table, struct err *e)
{
    struct plugin_table t = { TUNE_TABLE, TUNE_TABLE_VERSION, NULL };
    int rc = plugin_load(&t, NULL, e);

    *table = t.functions;
    return rc;
}

static struct tune_module there(const struct model *on,
                                const struct tuned_module *m)
{
    return (struct tune_module){ .rows = m->rows,
                                 .cols = m->cols,
                                 .group = m->group,
                                 .scale_dtype = m->scale_dtype,
                                 .dtype = model_dtype(on),
                                 .meta = m->meta_there,
                                 .v = m->v,
                                 .first = m->first,
                                 .second = m->second,
                                 .g = m->g,
                                 .w = m->w };
}

int tuned_there_place(const struct model *on, const struct tune_table *table,
                      struct tuned_module *m, const float *v, struct err *e)
{
    size_t n = (size_t)(m->rows * m->cols);
    size_t metas = (size_t)(m->rows * m->groups) * sizeof(*m->meta);
    struct tune_module t;
    void *numbers, *meta;

    if (model_alloc(on, &numbers, 3 * n * sizeof(float), false, NULL, e) < 0)
        return e->code;
    m->v = numbers;
    m->first = m->v + n;
    m->second = m->first + n;
    if (model_alloc(on, &meta, metas, false, NULL, e) < 0)
        return e->code;
    m->meta_there = meta;
    if (model_alloc(on, &m->w, n * (dtype_bits(model_dtype(on)) / 8), false,
                    NULL, e) < 0 ||
        model_put(on, m->v, v, n * sizeof(float), e) < 0 ||
        model_put(on, meta, m->meta, metas, e) < 0)
        return e->code;
    t = there(on, m);
    return table->values(device_gpu(), &t, e);
}

int tuned_there_step(const struct model *on, const struct tune_table *table,
                     const struct tuned_module *m, size_t n, int64_t layer,
                     float rate, const float back[2], struct err *e)
{
    struct tune_module *list = mem_alloc((n + 1) * sizeof(*list), "codes", e);
    int64_t count = 0;
    int rc = list ? 0 : e->code;

    for (size_t i = 0; i < n && list; i++)
        if (m[i].layer == layer && m[i].g)
            list[count++] = there(on, &m[i]);
    if (count)
        rc = table->step(device_gpu(), list, count, rate, back, e);
    free(list);
    return rc;
}

int tuned_there_fetch(const struct model *on, const struct tuned_module *m,
                      const float *from, float **to, struct err *e)
{
    size_t n = (size_t)(m->rows * m->cols) * sizeof(float);

    *to = mem_pages(n, m->name, e);
    return *to ? model_get(on, *to, from, n, e) : e->code;
}
