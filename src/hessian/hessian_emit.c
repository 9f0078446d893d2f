/* hessian_emit.c - see hessian_set.h: what is complete goes out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "device/ledger.h"
#include "hessian/hessian_entry.h"
#include "hessian/hessian_set.h"

static int result(struct entry *t, const float **data, struct err *e)
{
    int rc;

    if (t->acc) {
        if ((rc = hessian_finish(t->acc, data, e)) < 0)
            return rc;
        t->samples = hessian_tokens(t->acc);
    } else {
        hessian_merge_mean((float *)t->sum, t->sum, t->elements, t->samples);
        *data = (const float *)t->sum;
    }
    if (hessian_finite(*data, DT_F32, t->elements))
        return 0;
    for (uint64_t i = 0;; i++)
        if (!isfinite((*data)[i]))
            return err_set(e, E_DATA, "element %llu is not finite",
                           (unsigned long long)i);
}

static int emit_cross(const struct hessian_set *c, struct entry *t,
                      struct stream_writer *w, struct err *e)
{
    uint64_t n = hessian_tokens(t->acc);

    for (int k = 0; k < PAIRS; k++) {
        struct frame f = { .role = ROLE_CROSS,
                           .dtype = DT_F32,
                           .ndim = 2,
                           .dims = { t->cross_rows[k], t->cols },
                           .modules = t->modules,
                           .samples = n };
        const float *data = NULL;
        double times = blend_cross(&c->blend, t->name, n, t->cols);
        void *block;
        int rc;

        if (!t->cross[k])
            continue;
        snprintf(f.name, sizeof(f.name), "%s%s", t->name,
                 companion_suffix(pair_companion[k]));
        f.len = f.dims[0] * f.dims[1] * sizeof(float);
        if (cross_is_there(t->cross[k]) &&
            ledger_lease(c->params.ledger, f.len, &block, &f.loan))
            rc = cross_finish_there(t->cross[k], times, block, e);
        else
            rc = cross_finish(t->cross[k], times, &data, e);
        if (rc < 0)
            return err_prefix(e, "'%s'", f.name);
        f.data = f.loan.lent ? NULL : data;
        if (stream_write(w, &f, e) < 0)
            return e->code;
    }
    return 0;
}

/* Replace *data where the Hessian written is not the tokens' alone: the
 * identity without tokens, or blended.  *own: its memory, for the caller to
 * free; or NULL. */
static int amend(struct hessian_set *c, struct entry *t, const float **data,
                 float **own, struct err *e)
{
    bool none = t->acc && !hessian_tokens(t->acc);

    if (!none && !t->block && blend_keeps(&c->blend, t->name))
        return blend_keep(&c->blend, t->name, *data, t->elements, e);
    if (!none && blend_leaves(&c->blend, t->name))
        return 0;
    *own = mem_pages(t->elements * sizeof(**own), t->name, e);
    if (!*own)
        return e->code;
    if (none)
        blend_identity(*own, t->elements, t->block);
    else
        memcpy(*own, *data, t->elements * sizeof(**own));
    *data = *own;
    return t->block ? 0 :
                      blend_apply(&c->blend, t->name, t->samples, *own,
                                  t->elements, e);
}

/* Where the solver gets it from; *own: the diagonal, which goes along.  False: it
 * is not made there, or cannot be lent. */
static bool is_lent(struct hessian_set *c, struct entry *t, struct frame *f,
                    void **block)
{
    return t->acc && hessian_tokens(t->acc) && hessian_is_there(t->acc) &&
           blend_leaves(&c->blend, t->name) &&
           ledger_lease(c->params.ledger, f->len, block, &f->loan);
}

/* The blending of experts wants a layer's. */
static int keep_lent(struct hessian_set *c, struct entry *t, const void *block,
                     struct err *e)
{
    size_t n = t->elements * sizeof(float);

    if (!blend_keeps(&c->blend, t->name))
        return 0;
    if (room_need(&c->fetched, n, t->name, e) < 0 ||
        device_functions()->fetch(device_gpu(), c->fetched.p, block, n, e) < 0)
        return e->code;
    return blend_keep(&c->blend, t->name, c->fetched.p, t->elements, e);
}

/* The frame's payload or loan; *own: memory of it, or NULL. */
static int make(struct hessian_set *c, struct entry *t, struct frame *f,
                float **own, struct err *e)
{
    const float *data = NULL;
    void *block;
    int rc;

    *own = NULL;
    if (is_lent(c, t, f, &block)) {
        t->samples = hessian_tokens(t->acc);
        f->about = t->cols * sizeof(float);
        f->data = *own = mem_alloc(f->about, t->name, e);
        rc = *own ? hessian_finish_there(t->acc, block, *own, e) : e->code;
        return rc < 0 ? rc : keep_lent(c, t, block, e);
    }
    rc = t->acc && !hessian_tokens(t->acc) ? 0 : result(t, &data, e);
    if (rc >= 0)
        rc = amend(c, t, &data, own, e);
    f->data = data;
    return rc;
}

static int emit(struct hessian_set *c, struct entry *t, struct stream_writer *w,
                struct err *e)
{
    struct frame f = { .role = ROLE_HESSIAN,
                       .dtype = DT_F32,
                       .ndim = t->ndim,
                       .modules = t->modules,
                       .block = t->block,
                       .len = t->elements * sizeof(float) };
    float *own;
    int rc = make(c, t, &f, &own, e);

    if (rc < 0)
        err_prefix(e, "'%s'", t->name);
    strcpy(f.name, t->name);
    memcpy(f.dims, t->dims, sizeof(t->dims));
    f.samples = t->samples;
    if (rc >= 0 && t->acc && t->samples)
        rc = emit_cross(c, t, w, e);
    if (rc >= 0)
        rc = stream_write(w, &f, e);
    free(own);
    entry_drop(t);
    t->emitted = true;
    return rc;
}

int hessian_set_emit(struct hessian_set *c, const char *name,
                     struct stream_writer *w, struct err *e)
{
    int n = 0;

    for (size_t i = 0; i < c->count; i++) {
        struct entry *t = &c->entry[i];

        if (t->emitted || (name && strcmp(name, t->name)))
            continue;
        if (emit(c, t, w, e) < 0)
            return e->code;
        n++;
    }
    return n;
}
