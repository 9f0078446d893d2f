/* hessian_inputs.c - see hessian_inputs.h. */
#include "hessian/hessian_inputs.h"

#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "device/device.h"
#include "hessian/hessian_rows.h"
#include "hessian/token_weights.h"

int hessian_inputs_open(struct hessian_inputs *r, char **path, int n,
                        const char *key, struct err *e)
{
    struct stream_expect expect = { .key = key, .loans = r->ledger };
    int rc = 0;

    r->n_in = n ? n : 1;
    r->in = mem_zero((size_t)r->n_in, sizeof(*r->in), "inputs", e);
    r->batch = mem_zero((size_t)r->n_in, sizeof(*r->batch), "inputs", e);
    r->state = mem_zero((size_t)r->n_in, sizeof(*r->state), "inputs", e);
    r->leaves = mem_zero((size_t)r->n_in, sizeof(*r->leaves), "inputs", e);
    if (!r->in || !r->batch || !r->state || !r->leaves)
        return e->code;
    for (int i = 0; i < r->n_in && rc >= 0; i++) {
        rc = stream_open(&r->in[i], n ? path[i] : NULL, &expect, e);
        r->state[i] = INPUT_FRESH;
    }
    r->params.n_inputs = r->n_in;
    r->params.ledger = r->ledger;
    return rc < 0 ? rc : hessian_set_open(&r->all, &r->params, e);
}

void hessian_inputs_close(struct hessian_inputs *r)
{
    for (int i = 0; i < r->n_in; i++) {
        input_batch_close(r->batch[i]);
        stream_close(r->in[i]);
    }
    free(r->in);
    free(r->leaves);
    free(r->batch);
    free(r->state);
    for (size_t i = 0; i < r->n_hits; i++)
        free(r->hits[i].sum);
    free(r->hits);
    hessian_set_close(r->all);
    token_weights_close(r->params.weights);
    ledger_close(r->ledger);
}

/* Of another share. */
static bool unwanted(const void *all, const struct frame *f)
{
    return !hessian_set_wants(all, f->name);
}

/* Moments of several inputs are read when all have come: memory need not hold those of
 * each. */
static int leave(void *ctx, const struct frame *f, uint64_t at, struct err *e)
{
    const struct leaves *l = ctx;

    if (f->role != ROLE_HESSIAN && f->role != ROLE_CROSS)
        return 0;
    return hessian_set_later(l->all, f, l->in, at, e) < 0 ? e->code : 1;
}

/* The next frame of input i; *given: see input_batch.h. */
static int next(struct hessian_inputs *r, int i, struct frame *f, bool *given,
                struct err *e)
{
    int rc = input_batch_next(r->batch[i], f, given, e);

    if (rc <= 0 || r->state[i] != INPUT_FRESH)
        return rc;
    r->state[i] = INPUT_READING;
    if (r->params.prior)
        return rc;
    return stream_inherit(r->out, input_batch_head(r->batch[i]), e) < 0 ?
               e->code :
               rc;
}

/* What is behind a loan is worth nothing when its lender has died: how the input
 * ends says why. */
static int lender_died(struct hessian_inputs *r, int i, struct err *e)
{
    struct frame f;
    bool given;
    int rc;

    while ((rc = input_batch_next(r->batch[i], &f, &given, e)) > 0)
        ;
    return rc < 0 ? rc : err_set(e, E_DATA, "input ends early");
}

/* The last activation of a name; its companions came before it. */
static bool ends(const struct frame *f)
{
    size_t len;
    enum companion c = companion_of(f->name, &len);

    return f->role == ROLE_ACTIVATION && f->last &&
           (c == COMPANION_NONE || c == COMPANION_GRADIENT);
}

static int activation(struct hessian_inputs *r, int i, const struct frame *f,
                      bool given, struct err *e)
{
    struct frame there = *f;
    int rc = 0;

    r->lent |= f->loan.lent;
    if (f->loan.lent)
        rc = ledger_map(r->ledger, &f->loan, &there.data, e);
    if (rc >= 0 && !given)
        rc = hessian_set_activation(r->all, &there, e);
    if (rc >= 0 && f->loan.lease && /* with all frames before it */
        (rc = device_functions()->settle(device_gpu(), e)) >= 0)
        ledger_return(r->ledger, &f->loan);
    if (!r->lent || (rc >= 0 && !ends(f)))
        return rc;
    r->lent = false;
    return ledger_was_there(r->ledger, LEDGER_ACTIVATIONS) ?
               rc :
               lender_died(r, i, e);
}

/* ---- hit maps of several inputs ---- */

static struct hits *new_hits(struct hessian_inputs *r, const struct frame *f,
                             struct err *e)
{
    struct hits *h;

    if (mem_grow(&r->hits, (r->n_hits + 1) * sizeof(*h), "hit maps", e) < 0)
        return NULL;
    h = &r->hits[r->n_hits];
    h->f = *f;
    h->f.modules = NULL;
    h->sum =
        mem_zero(f->len / sizeof(float) + 1, sizeof(*h->sum), "hit maps", e);
    if (h->sum)
        r->n_hits++;
    return h->sum ? h : NULL;
}

/* E_DATA: parts of different shapes. */
static int add_hits(struct hessian_inputs *r, const struct frame *f,
                    struct err *e)
{
    const float *value = f->data;
    struct hits *h = NULL;

    for (size_t i = 0; i < r->n_hits && !h; i++)
        if (!strcmp(r->hits[i].f.name, f->name))
            h = &r->hits[i];
    if (f->dtype != DT_F32 || (h && h->f.len != f->len))
        return err_set(e, E_DATA, "'%s': parts of different shapes", f->name);
    if (!h && !(h = new_hits(r, f, e)))
        return e->code;
    for (size_t i = 0; i < f->len / sizeof(float); i++)
        h->sum[i] += value[i];
    return 0;
}

/* One share has them. */
static int write_hits(struct hessian_inputs *r, struct err *e)
{
    int rc = 0;

    for (size_t i = 0; i < r->n_hits && !r->params.share && rc >= 0; i++) {
        r->hits[i].f.data = r->hits[i].sum;
        rc = stream_write(r->out, &r->hits[i].f, e);
    }
    return rc;
}

/* Of what is blended with nothing is written. */
static int pass(struct hessian_inputs *r, const struct frame *f, struct err *e)
{
    return r->params.prior ? 0 : stream_write(r->out, f, e);
}

/* Frames of other roles are passed through when there is one input; with several
 * inputs they are dropped. */
static int take(struct hessian_inputs *r, int i, const struct frame *f,
                bool given, struct err *e)
{
    switch (f->role) {
    case ROLE_ACTIVATION:
        return r->params.partial && tensor_name_is_expert(f->name) ?
                   stream_write(r->out, f, e) :
                   activation(r, i, f, given, e);
    case ROLE_HESSIAN:
    case ROLE_CROSS: return hessian_set_part(r->all, f, e);
    case ROLE_HIDDEN:
    case ROLE_ROUTING:
    case ROLE_TOKENS: return 0; /* dropped: no later stage reads them */
    case ROLE_HITMAP: return r->n_in > 1 ? add_hits(r, f, e) : pass(r, f, e);
    default: return r->n_in > 1 ? 0 : pass(r, f, e);
    }
}

/* Input i has given all of f's name, but that more of its pieces follow. */
static int complete(struct hessian_inputs *r, int i, const struct frame *f,
                    struct err *e)
{
    struct moments_piece p;

    piece_of(f, &p);
    if (p.rows.end < p.rows.of || !hessian_set_complete(r->all, p.name, i))
        return 0;
    return hessian_set_emit(r->all, p.name, r->out, e);
}

/* Read input i up to and including the last frame of a name, so that of inputs
 * in the same order only one name at a time is in memory.  Of a single input,
 * Hessians may come again in a further stream. */
static int advance(struct hessian_inputs *r, int i, struct err *e)
{
    struct frame f;
    bool given;
    int rc;

    while ((rc = next(r, i, &f, &given, e)) > 0) {
        progress_step(&r->progress, f.name, f.len);
        if (!hessian_set_wants(r->all, f.name))
            continue;
        rc = take(r, i, &f, given, e);
        if (rc >= 0 && (ends(&f) || (f.role == ROLE_HESSIAN && r->n_in > 1)))
            return complete(r, i, &f, e);
        if (rc < 0)
            return rc;
    }
    r->state[i] = INPUT_ENDED;
    return rc;
}

int hessian_inputs_run(struct hessian_inputs *r, struct err *e)
{
    bool more = true;
    int rc = 0;

    if (r->out && stream_is_pipe(r->out))
        hessian_set_lend(r->all, r->ledger);
    for (int i = 0; i < r->n_in && rc >= 0; i++) {
        if (r->params.shares || r->params.prior || r->params.piece >= 0)
            stream_leave_out(r->in[i], unwanted, r->all);
        r->leaves[i] = (struct leaves){ r->in[i], r->all };
        if (r->n_in > 1)
            stream_later(r->in[i], leave, &r->leaves[i]);
        rc = input_batch_open(&r->batch[i], r->all, &r->params, r->in[i],
                              r->out, e);
    }
    if (rc < 0)
        return rc;

    while (more) {
        more = false;
        for (int i = 0; i < r->n_in; i++) {
            if (r->state[i] && (rc = advance(r, i, e)) < 0)
                return rc;
            more |= r->state[i] != INPUT_ENDED;
        }
    }
    rc = hessian_set_emit(r->all, NULL, r->out, e);
    return rc < 0 || r->params.prior ? rc : write_hits(r, e);
}

int hessian_inputs_prior(struct hessian_inputs *r, char **path, int n,
                         const char *key, struct err *e)
{
    struct hessian_inputs p = {
        .params = { .blend = r->params.blend, .piece = -1, .prior = true },
        .progress = { .mode = PROGRESS_NEVER }
    };
    int rc = hessian_inputs_open(&p, path, n, key, e);

    if (rc >= 0)
        rc = hessian_inputs_run(&p, e);
    if (rc >= 0)
        hessian_set_take_prior(r->all, p.all);
    hessian_inputs_close(&p);
    return rc < 0 ? rc : 0;
}
