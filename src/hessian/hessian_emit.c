/* hessian_emit.c - see hessian_set.h: what is complete goes out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/lanes.h"
#include "common/math/threads.h"
#include "device/device.h"
#include "device/ledger.h"
#include "hessian/hessian_entry.h"
#include "hessian/hessian_gpu.h"
#include "hessian/hessian_rows.h"
#include "hessian/hessian_set.h"

static uint64_t tokens_of(const struct entry *t)
{
    return t->acc ? hessian_tokens(t->acc) : t->samples;
}

static int result(struct entry *t, const float **data, struct err *e)
{
    int rc;

    if (t->acc) {
        if ((rc = hessian_finish(t->acc, data, e)) < 0)
            return rc;
        t->samples = hessian_tokens(t->acc);
    } else {
        if ((rc = merging_mean(&t->whole, t->samples, data, e)) < 0)
            return rc;
    }
    if (lanes_all_finite(*data, DT_F32, t->acc ? t->elements : t->whole.n))
        return 0;
    for (uint64_t i = 0;; i++)
        if (!isfinite((*data)[i]))
            return err_set(e, E_DATA, "element %llu is not finite",
                           (unsigned long long)i);
}

/* Mean of the merged cross moments of a kind, times a factor. */
static int merged_cross(struct entry *t, int k, double times,
                        const float **data, struct err *e)
{
    uint64_t n = t->cross_rows[k] * t->cols;

    if (t->cross_samples[k] != t->samples)
        return err_set(e, E_DATA, "is of other tokens than the Hessian");
    if (merging_mean(&t->cross_whole[k], t->samples, data, e) < 0)
        return e->code;
    for (uint64_t i = 0; times < 1 && i < n; i++)
        t->cross_whole[k].mean[i] =
            (float)(times * (double)t->cross_whole[k].mean[i]);
    return 0;
}

/* Write a frame of moments of whose `of` numbers, or rows, params.piece is there: with those
 * in its name; of all, as many frames as params.pieces. */
static int write_pieces(const struct hessian_set *c, const struct frame *f,
                        uint64_t of, struct stream_writer *w, struct err *e)
{
    int64_t n = c->params.pieces, k = c->params.piece;
    uint64_t row = f->dims[0] ? f->len / f->dims[0] : 0;
    struct frame x = *f;
    struct name_rows r;

    if (n <= 1 || f->block || f->loan.lent || tensor_name_is_expert(f->name))
        return stream_write(w, f, e);
    for (int64_t i = k < 0 ? 0 : k; i < (k < 0 ? n : k + 1); i++) {
        if (!piece_rows(of, i, n, &r))
            continue;
        name_rows_format(f->name, &r, x.name);
        x.dims[0] = r.end - r.first;
        x.len = x.dims[0] * row;
        x.data = (const char *)f->data + (k < 0 ? r.first * row : 0);
        if (stream_write(w, &x, e) < 0)
            return e->code;
    }
    return 0;
}

/* Lend f->data in room of the ledger; false: there is none. */
static bool lend_room(const struct hessian_set *c, struct frame *f)
{
    void *block;

    if (!ledger_moments(c->lends, f->len, &block, &f->loan))
        return false;
    threads_copy(block, f->data, f->len);
    return true;
}

static int emit_cross(const struct hessian_set *c, struct entry *t,
                      const char *modules, struct stream_writer *w,
                      struct err *e)
{
    for (int k = 0; k < PAIRS; k++) {
        struct frame f = { .role = ROLE_CROSS,
                           .dtype = DT_F32,
                           .ndim = 2,
                           .dims = { t->cross_rows[k], t->cols },
                           .modules = modules,
                           .samples = t->samples };
        const float *data = NULL;
        double times = blend_cross(&c->blend, t->name, t->samples, t->cols);
        void *block;
        int rc;

        if (!t->cross[k] && !merging_begun(&t->cross_whole[k]))
            continue;
        snprintf(f.name, sizeof(f.name), "%s%s", t->name,
                 companion_suffix(pair_companion[k]));
        f.len = f.dims[0] * f.dims[1] * sizeof(float);
        if (!t->cross[k])
            rc = merged_cross(t, k, times, &data, e);
        else if (cross_is_there(t->cross[k]) &&
                 ledger_lease(c->lends, f.len, &block, &f.loan))
            rc = cross_finish_there(t->cross[k], times, block, e);
        else
            rc = cross_finish(t->cross[k], times, &data, e);
        if (rc < 0)
            return err_prefix(e, "'%s'", f.name);
        f.data = data;
        if (f.loan.lent || lend_room(c, &f))
            f.data = NULL;
        if (write_pieces(c, &f, t->cross[k] ? f.dims[0] : t->cross_of[k], w,
                         e) < 0)
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
    bool none = !tokens_of(t);

    if (c->params.piece >= 0)
        return none && t->whole.n ? err_set(e, E_DATA, "has no tokens") : 0;
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

/* Whether the solver reads it on the device, from f's loan in t->lease.  False: it
 * is not made there, or cannot be lent. */
static bool is_lent(struct hessian_set *c, struct entry *t, struct frame *f)
{
    if (!t->lease.block &&
        (!t->acc || !hessian_tokens(t->acc) || !hessian_is_there(t->acc) ||
         !hessian_set_lease(c, t->name, t->elements, &t->lease)))
        return false;
    f->loan = t->lease.loan;
    return true;
}

/* The blending of experts wants a layer's. */
static int keep_lent(struct hessian_set *c, struct entry *t, struct err *e)
{
    size_t n = t->elements * sizeof(float);

    if (!blend_keeps(&c->blend, t->name))
        return 0;
    if (room_need(&c->fetched, n, t->name, e) < 0 ||
        device_functions()->fetch(device_gpu(), c->fetched.p, t->lease.block, n,
                                  e) < 0)
        return e->code;
    return blend_keep(&c->blend, t->name, c->fetched.p, t->elements, e);
}

/* Finish the Hessian in t->lease; diagonal[cols], out: its diagonal. */
static int make_there(struct hessian_set *c, struct entry *t, float *diagonal,
                      struct err *e)
{
    float *h = t->lease.block;

    t->samples = hessian_tokens(t->acc);
    if (hessian_finish_there(t->acc, h, e) < 0 ||
        hessian_gpu_diagonal(h, t->cols, diagonal, e) < 0 ||
        keep_lent(c, t, e) < 0)
        return e->code;
    return blend_apply_there(&c->blend, t->name, t->samples, h, t->elements,
                             diagonal, e);
}

/* Lend the Hessian f->data in room of the ledger, as far as there is any, with its
 * diagonal; *own: memory of that, in place of the Hessian's. */
static int lend_hessian(const struct hessian_set *c, const struct entry *t,
                        struct frame *f, float **own, struct err *e)
{
    const float *h = f->data;
    float *diagonal;

    if (t->block || !lend_room(c, f))
        return 0;
    diagonal = mem_alloc(t->cols * sizeof(*diagonal), t->name, e);
    if (!diagonal)
        return e->code;
    for (uint64_t i = 0; i < t->cols; i++)
        diagonal[i] = h[i * (i + 3) / 2];
    free(*own);
    f->data = *own = diagonal;
    f->about = t->cols * sizeof(*diagonal);
    return 0;
}

/* The frame's payload or loan; *own: memory of it, or NULL. */
static int make(struct hessian_set *c, struct entry *t, struct frame *f,
                float **own, struct err *e)
{
    const float *data = NULL;
    int rc;

    *own = NULL;
    if (is_lent(c, t, f)) { /* with its diagonal */
        f->about = t->cols * sizeof(float);
        f->data = *own = mem_alloc(f->about, t->name, e);
        return *own ? make_there(c, t, *own, e) : e->code;
    }
    rc = tokens_of(t) ? result(t, &data, e) : 0;
    if (rc >= 0)
        rc = amend(c, t, &data, own, e);
    f->data = data;
    return rc < 0 ? rc : lend_hessian(c, t, f, own, e);
}

/* Leave in t->modules those of params.rows.  1; 0: none; E_TEMP. */
static int take_rows(const struct hessian_set *c, struct entry *t,
                     struct err *e)
{
    char *all = t->modules;

    if (c->params.prior)
        return 0;
    if (!c->params.rows || !all || tensor_name_is_expert(t->name))
        return 1;
    if (rows_of_modules(c->params.rows, all, &t->modules, e) < 0)
        return e->code;
    free(all);
    return *t->modules != 0;
}

static int emit(struct hessian_set *c, struct entry *t, struct stream_writer *w,
                struct err *e)
{
    struct frame f = { .role = ROLE_HESSIAN,
                       .dtype = DT_F32,
                       .ndim = t->ndim,
                       .block = t->block,
                       .len = t->elements * sizeof(float) };
    int wanted = take_rows(c, t, e), rc = wanted < 0 ? wanted : 0;
    float *own = NULL;

    f.modules = t->modules;
    if (rc >= 0 && c->params.parts > 1 && !tensor_name_is_expert(t->name))
        rc = entry_merge(t, e);
    if (rc >= 0 && !t->acc && !merging_begun(&t->whole))
        rc = err_set(e, E_DATA, "its Hessian is missing");
    if (rc >= 0 && (wanted || blend_keeps(&c->blend, t->name)))
        rc = make(c, t, &f, &own, e);
    if (rc < 0)
        err_prefix(e, "'%s'", t->name);
    strcpy(f.name, t->name);
    memcpy(f.dims, t->dims, sizeof(t->dims));
    f.samples = t->samples;
    if (rc >= 0 && wanted && t->samples)
        rc = emit_cross(c, t, f.modules, w, e);
    if (rc >= 0 && wanted && c->params.piece >= 0) {
        f.dims[0] = t->whole.n;
        f.len = t->whole.n * sizeof(float);
    }
    if (rc >= 0 && wanted)
        rc = write_pieces(c, &f, t->elements, w, e);
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
