/* gather.c - see gather.h. */
#include "pack/gather.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"

static int part_of(enum role r)
{
    return r == ROLE_CODES  ? GATHER_CODES :
           r == ROLE_QMETA  ? GATHER_META :
           r == ROLE_SCALES ? GATHER_SCALES :
           r == ROLE_ZEROS  ? GATHER_ZEROS :
           r == ROLE_INDEX  ? GATHER_INDEX :
                              GATHER_COUNT;
}

bool gather_wants(const struct frame *f)
{
    return part_of(f->role) < GATHER_COUNT && !f->ancillary;
}

bool gather_other(const struct gather *g, const struct frame *f)
{
    return *g->name && strcmp(g->name, f->name) != 0;
}

static bool dtype_fits(const struct frame *f)
{
    switch (f->role) {
    case ROLE_QMETA: return f->dtype == DT_QMETA4;
    case ROLE_INDEX: return f->dtype == DT_I32;
    case ROLE_SCALES:
        return f->dtype == DT_F16 || f->dtype == DT_BF16 || f->dtype == DT_F32;
    default: return f->dtype == DT_U4 || f->dtype == DT_U8;
    }
}

static int keep(struct gather_part *p, const struct frame *f, struct err *e)
{
    if (mem_reserve(&p->data, &p->cap, f->len, f->name, e) < 0)
        return e->code;
    if (f->len)
        memcpy(p->data, f->data, f->len);
    p->len = f->len;
    p->dtype = f->dtype;
    p->dims[0] = f->dims[0];
    p->dims[1] = f->ndim > 1 ? f->dims[1] : 0;
    p->present = true;
    return 0;
}

int gather_add(struct gather *g, const struct frame *f, struct err *e)
{
    struct gather_part *p = &g->part[part_of(f->role)];
    enum dtype t = f->role == ROLE_QMETA  ? f->scale_dtype :
                   f->role == ROLE_SCALES ? f->dtype :
                                            DT_NONE;

    if (p->present)
        return err_set(e, E_DATA, "%s: %s twice", f->name, role_name(f->role));
    if (!dtype_fits(f) || f->ndim != (f->role == ROLE_INDEX ? 1 : 2))
        return err_set(e, E_DATA, "%s: %s are %s with %d dimensions", f->name,
                       role_name(f->role), dtype_name(f->dtype), f->ndim);
    if (f->group && g->group && f->group != g->group)
        return err_set(e, E_DATA,
                       "%s: %s says groups of %u, a frame before it %" PRIu64,
                       f->name, role_name(f->role), f->group, g->group);
    if (f->group)
        g->group = f->group;
    if (t != DT_NONE)
        g->scale_dtype = t;
    memcpy(g->name, f->name, sizeof(g->name));
    return keep(p, f, e);
}

static int same_dims(const struct gather *g, int i, uint64_t rows,
                     uint64_t groups, struct err *e)
{
    const struct gather_part *p = &g->part[i];

    if (p->present && (p->dims[0] != rows || p->dims[1] != groups))
        return err_set(e, E_DATA,
                       "%s: grid of %" PRIu64 " x %" PRIu64 " for %" PRIu64
                       " outputs",
                       g->name, p->dims[0], p->dims[1], rows);
    return 0;
}

static bool bits_agree(const struct pack_module *m)
{
    return quant_bits(m->meta[0]) == m->bits &&
           quant_same_bits(m->meta, m->rows * m->groups);
}

int gather_module(const struct gather *g, struct pack_module *m, struct err *e)
{
    const struct gather_part *codes = &g->part[GATHER_CODES];
    const struct gather_part *meta = &g->part[GATHER_META];
    const struct gather_part *scales = &g->part[GATHER_SCALES];
    const struct gather_part *zeros = &g->part[GATHER_ZEROS];

    if (!*g->name)
        return 0;
    if (!codes->present)
        return err_set(e, E_DATA,
                       "%s: a grid without codes: has forge-solve "
                       "run?",
                       g->name);
    if (meta->present == scales->present || (meta->present && zeros->present))
        return err_set(e, E_DATA, "%s: want codes with either qmeta or scales",
                       g->name);
    if (!g->group)
        return err_set(e, E_DATA, "%s: no frame says its group", g->name);
    *m = (struct pack_module){
        .name = g->name,
        .rows = codes->dims[0],
        .cols = codes->dims[1],
        .groups = meta->present ? meta->dims[1] : scales->dims[1],
        .group = g->group,
        .bits = (int)dtype_bits(codes->dtype),
        .codes = codes->data,
        .meta = meta->present ? meta->data : NULL,
        .scales = scales->present ? scales->data : NULL,
        .zeros = zeros->present ? zeros->data : NULL,
        .index =
            g->part[GATHER_INDEX].present ? g->part[GATHER_INDEX].data : NULL,
        .scale_dtype = g->scale_dtype ? g->scale_dtype : DT_F16,
    };
    if (m->index && g->part[GATHER_INDEX].dims[0] != m->cols)
        return err_set(e, E_DATA,
                       "%s: index of %" PRIu64 " for %" PRIu64 " inputs",
                       g->name, g->part[GATHER_INDEX].dims[0], m->cols);
    if (m->meta ? m->groups && !bits_agree(m) :
                  m->zeros && zeros->dtype != codes->dtype)
        return err_set(e, E_DATA, "%s: codes of %d bits, and a grid of others",
                       g->name, m->bits);
    for (int i = GATHER_META; i <= GATHER_ZEROS; i++)
        if (same_dims(g, i, m->rows, m->groups, e))
            return e->code;
    return 1;
}

void gather_clear(struct gather *g)
{
    for (int i = 0; i < GATHER_COUNT; i++)
        g->part[i].present = false;
    g->name[0] = 0;
    g->group = 0;
    g->scale_dtype = DT_NONE;
}

void gather_release(struct gather *g)
{
    for (int i = 0; i < GATHER_COUNT; i++)
        free(g->part[i].data);
}
