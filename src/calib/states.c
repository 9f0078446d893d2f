/* states.c - see states.h. */
#include "calib/states.h"

#include <string.h>

#include "calib/emit.h"
#include "calib/expert_states.h"

/* A stream's store, and where its states are. */
struct stream_place {
    const struct store *s;
    struct emit_place place;
};

/* of[2] = the streams that there are; returns their number. */
static int list(const struct run *r, const struct places *p,
                struct stream_place of[2])
{
    of[0] = (struct stream_place){ r->s, { p->layer, p->at, COMPANION_NONE } };
    of[1] =
        (struct stream_place){ r->reference,
                               { p->layer, p->reference, COMPANION_ORIGINAL } };
    for (int i = 0; i < 2; i++)
        if (of[i].place.at == POINT_ATTN_IN)
            of[i].place.at = POINT_IN;
    return r->reference ? 2 : 1;
}

static bool has_activation(const struct emit_place *p)
{
    return p->at > POINT_IN && p->at < POINT_OUT;
}

static int write_stream(const struct stream_place *x, enum role role,
                        struct stream_writer *w, struct err *e)
{
    const struct emit_place *p = &x->place;
    struct buffer room = { 0 };
    int rc = 0;

    for (int64_t i = 0; i < x->s->n_batches && rc >= 0; i++) {
        const struct span *b = &x->s->batch[i];

        rc = role == ROLE_HIDDEN ? 0 :
                                   store_fetch_act(x->s, b, p->layer, p->at, e);
        if (rc >= 0)
            rc = emit_state(w, x->s, b, p, role, &room, e);
    }
    buffer_release(&room);
    return rc;
}

static int write_all(const struct run *r, const struct places *p,
                     const struct calib_experts *ex, struct stream_writer *w,
                     struct err *e)
{
    struct stream_place of[2];
    int n = list(r, p, of), rc = stream_inherit(w, r->c->head, e);

    for (int i = 0; i < n && rc >= 0; i++)
        rc = write_stream(&of[i], ROLE_HIDDEN, w, e);
    for (int i = 0; i < n && rc >= 0; i++)
        if (has_activation(&of[i].place))
            rc = write_stream(&of[i], ROLE_ACTIVATION, w, e);
    return rc < 0 || p->at != POINT_OUT ? rc : expert_states_write(ex, w, e);
}

int states_write(const struct run *r, const struct places *p,
                 const struct calib_experts *ex, struct err *e)
{
    const struct stream_output out = { .path = r->c->hidden, .key = r->c->key };
    struct stream_writer *w;

    if (!r->c->hidden)
        return 0;
    if (stream_create(&w, &out, e) < 0)
        return e->code;
    if (write_all(r, p, ex, w, e) < 0) {
        stream_abort(w, e);
        return e->code;
    }
    return stream_finish(w, e);
}

static int read_batch(const struct stream_place *x, const struct span *b,
                      struct batch_reader *f, struct err *e)
{
    const struct emit_place *p = &x->place;
    int64_t width = point_width(model_config(x->s->m), p->layer, p->at);
    size_t row = (size_t)width * dtype_bits(model_dtype(x->s->m)) / 8;
    struct frame want = { .role = ROLE_ACTIVATION,
                          .dtype = model_dtype(x->s->m),
                          .ndim = 2,
                          .dims = { 0, (uint64_t)width } };
    char *to = store_act(x->s, b);

    emit_state_name(p, want.name);
    for (int64_t i = b->first; i < b->first + b->n; i++) {
        const struct sequence *q = &x->s->sequence[i];
        size_t n = (size_t)q->length * row;
        const void *data;

        want.sequence = q->number;
        want.dims[0] = (uint64_t)q->length;
        if (batch_reader_inside(f, &want, &data, e) < 0)
            return e->code;
        memcpy(to, data, n);
        to += n;
    }
    return store_put_act(x->s, b, p->layer, p->at, e);
}

int states_read(const struct run *r, const struct places *p,
                struct calib_experts *ex, struct err *e)
{
    struct stream_place of[2];
    int n = list(r, p, of), rc = 0;

    for (int i = 0; i < n; i++)
        for (int64_t k = 0;
             has_activation(&of[i].place) && rc >= 0 && k < of[i].s->n_batches;
             k++)
            rc = read_batch(&of[i], &of[i].s->batch[k], r->c->batches, e);
    return rc < 0 || p->at != POINT_OUT ?
               rc :
               expert_states_read(ex, r->c->batches, e);
}
