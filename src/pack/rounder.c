/* rounder.c - see rounder.h. */
#include "pack/rounder.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/math/quant.h"
#include "pack/pack_backend.h"
#include "pack/round.h"

void rounder_init(struct rounder *r, uint64_t group, bool symmetric,
                  enum dtype scale_dtype, enum layout layout)
{
    *r = (struct rounder){ .group = group ? group : 128,
                           .symmetric = symmetric,
                           .scale_dtype = scale_dtype,
                           .layout = layout };
}

/* Layouts whose words are no transposed codes are made from codes. */
static enum layout words_of(enum layout l)
{
    return l == LAYOUT_AWQ || l == LAYOUT_GPTQ || l == LAYOUT_GPTQ_V2 ?
               l :
               LAYOUT_CT;
}

/* Round to r->codes, in the order of words_of(), and r->meta; *words: whether it is
 * another than of codes. */
static int round_to(struct rounder *r, const struct round_params *p,
                    const void *w, bool *words, struct err *e)
{
    enum layout l = words_of(r->layout);
    int rc = pack_round(p, l, w, r->meta, (uint32_t *)(void *)r->codes, e);

    *words = rc > 0 && l != LAYOUT_CT;
    return rc ? rc : round_absmax(p, w, r->meta, r->codes, e);
}

int rounder_module(struct rounder *r, const struct frame *f,
                   struct pack_module *m, struct err *e)
{
    const struct round_params p = { .name = f->name,
                                    .rows = f->dims[0],
                                    .cols = f->dims[1],
                                    .group = r->group,
                                    .symmetric = r->symmetric,
                                    .dtype = f->dtype,
                                    .scale_dtype = r->scale_dtype };
    uint64_t groups;
    bool words;

    if (f->ndim != 2 || !dtype_is_float(f->dtype) || !f->dims[0] ||
        !f->dims[1] || f->dims[1] % 2)
        return err_set(e, E_DATA,
                       "'%s': a weight is a matrix of floats with an even "
                       "number of inputs",
                       f->name);
    groups = quant_groups(p.cols, p.group);
    /* no overflow: neither is larger than the weight in f32 */
    if (mem_reserve(&r->codes, &r->codes_cap, p.rows * (p.cols / 2), f->name,
                    e) < 0 ||
        mem_reserve(&r->meta, &r->meta_cap, p.rows * groups * sizeof(*r->meta),
                    f->name, e) < 0 ||
        round_to(r, &p, f->data, &words, e) < 0)
        return e->code;
    snprintf(r->name, sizeof(r->name), "%s", f->name);
    *m = (struct pack_module){
        .name = r->name,
        .bits = 4,
        .rows = p.rows,
        .cols = p.cols,
        .groups = groups,
        .group = p.group,
        .codes = r->codes,
        .words = words ? (const uint32_t *)(const void *)r->codes : NULL,
        .meta = r->meta,
        .scale_dtype = p.scale_dtype
    };
    return 0;
}

void rounder_release(struct rounder *r)
{
    free(r->codes);
    free(r->meta);
}
