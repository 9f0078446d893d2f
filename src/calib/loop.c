/* loop.c - see loop.h. */
#include "calib/loop.h"

#include <stdlib.h>

#include "calib/emit.h"
#include "calib/experts.h"
#include "calib/outputs.h"
#include "calib/states.h"

struct loop {
    struct run *run;
    struct calib_experts experts;
    struct outputs outputs; /* of experts, that others have computed */
};

/* ---- points at which activations are written ---- */

/* Whether a linear that reads point p, and is no expert's, has codes, or has none:
 * `has`. */
static bool reader_that(const struct loop *l, int64_t layer, enum point p,
                        bool has)
{
    const struct model_config *c = model_config(l->run->c->m);
    int64_t n = model_linear_common(c, layer);

    for (int64_t i = 0; i < n; i++) {
        struct linear k;

        model_linear(c, layer, i, &k);
        if (k.input == point_input(p) &&
            quantized_has(l->run->c->codes, k.module) == has)
            return true;
    }
    return false;
}

/* Whether to write the activations of point p: a linear that reads it has no
 * codes yet, or the run ends there (calib.until).  POINT_MLP_IN also when
 * an expert has none, or in front of the end there, if no stop before was at it:
 * forge-hessian may blend the expert's Hessian with that of mlp_in. */
static bool wanted(const struct loop *l, int64_t layer, enum point p)
{
    const struct calib_stop *until = l->run->c->until;

    if (until && layer == until->layer && until->at == POINT_OUT &&
        p == POINT_MLP_IN)
        return !reader_that(l, layer, p, true);
    if (until)
        return layer == until->layer && p == until->at;
    return reader_that(l, layer, p, false) ||
           (p == POINT_MLP_IN && l->experts.experts &&
            calib_experts_wanted(&l->experts));
}

/* The first wanted point from p on; POINT_OUT: none. */
static enum point next_wanted(const struct loop *l, int64_t layer, enum point p)
{
    while (p < POINT_OUT && !wanted(l, layer, p))
        p++;
    return p;
}

/* The next point to stop at: the next wanted one; POINT_MLP_IN if there are
 * experts, whose tokens are gathered there. */
static enum point next_stop(const struct loop *l, int64_t layer, enum point at)
{
    enum point p = next_wanted(l, layer, at + 1);

    return l->experts.experts && at < POINT_MLP_IN && p > POINT_MLP_IN ?
               POINT_MLP_IN :
               p;
}

/* ---- one step ---- */

struct step {
    int64_t layer;
    enum point from, to;
    struct layer *weights;
    struct layer *drift;  /* the reference's, for companions that are lent */
    struct emission *out; /* NULL: nothing is written */
    bool last;            /* the layer's last step */
    enum point
        reference; /* the reference stream's point, which may be further */
    float *bias;   /* of the linear that the reference passed last, or NULL */
};

/* The last point up to `at` from which a stream can go on with x alone. */
static enum point base_of(enum point at)
{
    return at < POINT_MLP_IN ? POINT_IN :
           at < POINT_OUT    ? POINT_MLP_IN :
                               POINT_OUT;
}

/* From where weights are wanted to run all batches on from `from`. */
static enum point first_of(const struct loop *l, enum point from)
{
    const struct store *s = l->run->s;
    const struct lending *lent = store_lending(s);

    return lent && !lending_keeps(lent, s->n_batches - 1, from) ?
               base_of(from) :
               from;
}

/* Run batch i of either store from one point to another where activations are lent;
 * end: memory for the last one, or NULL. */
static int run_lent(struct loop *l, struct layer *w, const struct store *s,
                    int64_t i, enum point from, enum point to, void *end,
                    struct err *e)
{
    const struct lending *lent = store_lending(s);
    bool kept = !s->primary && lending_keeps(lent, i, from);
    struct state *state = &l->run->state;

    from = kept ? from : base_of(from);
    if (store_load(s, &s->batch[i], from, state, e) < 0)
        return e->code;
    state->end = end;
    if (kept)
        state->act = lending_rows(lent, i, from);
    else if (from == POINT_MLP_IN && layer_mlp_in(w, state, to, e) < 0)
        return e->code;
    return layer_run(w, state, to, NULL, e);
}

/* The same where they are kept; emit: they will be written. */
static int run_kept(struct loop *l, const struct step *t, struct layer *w,
                    const struct store *s, int64_t i, enum point from,
                    enum point to, bool emit, struct err *e)
{
    const struct span *b = &s->batch[i];
    struct state *state = &l->run->state;

    if (store_load(s, b, from, state, e) < 0 ||
        store_keep(s, b, t->layer, state, e) < 0 ||
        layer_run(w, state, to, NULL, e) < 0)
        return e->code;
    return store_take(s, b, t->layer, state, emit, e);
}

/* Run batch i of either store from one point to another. */
static int run_store(struct loop *l, const struct step *t, struct layer *w,
                     const struct store *s, int64_t i, enum point from,
                     enum point to, struct err *e)
{
    const struct lending *lent = store_lending(s);
    bool emit = t->out && s == l->run->s;
    int rc;

    if (lent)
        rc = run_lent(l, w, s, i, from, to,
                      emit ? lending_rows(lent, i, to) : NULL, e);
    else
        rc = run_kept(l, t, w, s, i, from, to, emit, e);
    if (rc < 0 || to != POINT_MLP_IN)
        return rc;
    return calib_experts_take(&l->experts, &s->batch[i], &l->run->state,
                              s == l->run->reference, e);
}

/* The point that the reference stream must have reached for the companions
 * written at `stop`: the one behind it if the companion is NAME.output
 * (emit.h). */
static enum point needed(const struct loop *l, int64_t layer, enum point stop)
{
    return stop + (stop < POINT_OUT && wanted(l, layer, stop) &&
                   point_adds(model_config(l->run->c->m), layer, stop));
}

/* Whether a step writes into the residual stream, or keys beside it. */
static bool changes_x(const struct loop *l, int64_t layer, enum point from,
                      enum point to)
{
    bool keys = model_row_keys(model_config(l->run->c->m), layer);
    enum point first = keys ? POINT_ATTN_OUT : POINT_MLP_IN;

    return from < first && to >= first;
}

/* Run all batches of the reference stream to a point, if they are not there
 * yet. */
static int run_reference(struct loop *l, struct step *t, enum point to,
                         struct err *e)
{
    const struct store *s = l->run->reference;
    struct layer *w = NULL;
    int rc;

    if (s && store_lending(s)) /* beyond that it is run batch by batch */
        to = base_of(to);
    if (!s || t->reference >= to)
        return 0;
    if (changes_x(l, t->layer, t->reference, to) &&
        publisher_join(&l->run->publisher, e) < 0)
        return e->code;
    rc =
        model_load_layer(l->run->c->m, t->layer, t->reference, to, NULL, &w, e);
    for (int64_t i = 0; i < s->n_batches && rc >= 0; i++) {
        rc = run_store(l, t, w, s, i, t->reference, to, e);
        store_leave(s, &s->batch[i]);
    }
    if (rc >= 0) {
        model_free(l->run->c->m, t->bias);
        t->bias = layer_take_bias(w, to - 1);
        t->reference = to;
    }
    layer_release(w);
    return rc;
}

/* Give batch i to the emission, with what its companion is made of. */
static int emit_batch(struct loop *l, const struct step *t, int64_t i,
                      struct err *e)
{
    if (t->drift &&
        run_lent(l, t->drift, l->run->reference, i, t->to, t->to,
                 lending_companion(store_lending(l->run->s), i, t->to), e) < 0)
        return e->code;
    return emission_ready(t->out, i, &l->run->state, e);
}

static int run_batch(struct loop *l, const struct step *t, int64_t i,
                     struct err *e)
{
    const struct store *s = l->run->s;
    const struct span *b = &s->batch[i];

    if ((t->out && store_lending(s) && emission_place(t->out, i, e) < 0) ||
        run_store(l, t, t->weights, s, i, t->from, t->to, e) < 0 ||
        (t->to == POINT_OUT && run_check(l->run, b, t->layer + 1, e) < 0))
        return e->code;
    if (t->last)
        run_progress(l->run, b);
    if (t->out)
        return emit_batch(l, t, i, e);
    store_leave(s, b);
    return 0;
}

static int run_batches(struct loop *l, const struct step *t, struct err *e)
{
    int rc = 0;

    for (int64_t i = 0; i < l->run->s->n_batches && rc >= 0; i++)
        rc = run_batch(l, t, i, e);
    return rc;
}

/* Whether the two streams can differ at t->to.  If both began with the same
 * states, they are equal in front of the first linear. */
static bool parted(const struct loop *l, const struct step *t)
{
    return l->run->parted ||
           t->layer > batch_reader_layer(l->run->c->batches) ||
           t->to > POINT_ATTN_IN;
}

/* Load what a step runs with. */
static int load_step(struct loop *l, struct step *t, bool drifts, struct err *e)
{
    struct calib *c = l->run->c;

    t->weights = t->drift = NULL;
    if (model_load_layer(c->m, t->layer, first_of(l, t->from), t->to, c->codes,
                         &t->weights, e) < 0)
        return e->code;
    return drifts ? model_load_layer(c->m, t->layer, base_of(t->to), t->to,
                                     NULL, &t->drift, e) :
                    0;
}

/* Run all batches from t->from to t->to; emit: write the activations there. */
static int run_step(struct loop *l, struct step *t, bool emit, struct err *e)
{
    struct calib *c = l->run->c;
    struct emission out = { .w = c->out,
                            .s = l->run->s,
                            .reference =
                                parted(l, t) ? l->run->reference : NULL,
                            .layer = t->layer,
                            .at = t->to,
                            .goes_on = c->until && t->to != c->until->at };
    int rc;

    if (changes_x(l, t->layer, t->from, t->to) &&
        publisher_join(&l->run->publisher, e) < 0)
        return e->code;
    if (run_reference(l, t, needed(l, t->layer, t->to), e) < 0)
        return e->code;
    rc = load_step(
        l, t, emit && store_lending(l->run->s) && emission_drifts(&out), e);
    out.bias = t->bias;
    t->out = emit ? &out : NULL;
    if (rc >= 0 && emit)
        rc = emission_start(&out, e);
    if (rc >= 0) {
        rc = run_batches(l, t, e);
        if (emit && emission_finish(&out, rc < 0, e) < 0)
            rc = e->code;
    }
    layer_release(t->weights);
    layer_release(t->drift);
    return rc;
}

static int send_mark(struct loop *l, int64_t layer, enum point at,
                     struct err *e)
{
    char name[FRAME_NAME_MAX + 1];

    emit_name(layer, at, name);
    return run_mark(l->run, name, e);
}

/* Wait for the codes of the linears at t->to.  Meanwhile the reference stream,
 * which needs no codes, runs on to where the next stop needs it.  Behind the
 * layer's last codes a mark with the layer's name tells downstream tools that
 * the layer is complete. */
static int take_codes(struct loop *l, struct step *t, struct err *e)
{
    int64_t layer = t->layer;
    enum point at = t->to, stop = next_stop(l, layer, at);

    if (send_mark(l, layer, at, e) < 0 ||
        (stop < POINT_OUT &&
         run_reference(l, t, needed(l, layer, stop), e) < 0) ||
        feedback_wait(l->run->c->feedback, l->run->marks, l->run->c->codes, e) <
            0 ||
        quantized_check(l->run->c->codes, e) < 0)
        return e->code;
    return !l->experts.experts && next_wanted(l, layer, at + 1) == POINT_OUT ?
               send_mark(l, layer, POINT_IN, e) :
               0;
}

/* The end of the run, calib.until: the states to go on from.  Behind the routing
 * those at POINT_MLP_IN serve, up to POINT_OUT. */
static int stop(struct loop *l, const struct step *t, enum point at,
                struct err *e)
{
    const struct places here = { t->layer, at, t->reference };
    bool keep = at <= POINT_MLP_IN || at == POINT_OUT || !l->experts.experts;

    return keep ? states_write(l->run, &here, &l->experts, e) : 0;
}

/* Take up states at a point inside the layer: batches at POINT_MLP_IN are
 * routed. */
static int resume(struct loop *l, const struct step *t, struct err *e)
{
    struct run *r = l->run;
    const struct places here = { t->layer, t->to, t->reference };
    const struct store *of[2] = { r->s, r->reference };
    const enum point at[2] = { t->to, t->reference };

    if (states_read(r, &here, &l->experts, e) < 0)
        return e->code;
    for (int i = 0; i < 2; i++)
        for (int64_t k = 0;
             of[i] && at[i] == POINT_MLP_IN && k < of[i]->n_batches; k++) {
            const struct span *b = &of[i]->batch[k];

            if (store_load(of[i], b, POINT_MLP_IN, &r->state, e) < 0 ||
                store_keep(of[i], b, t->layer, &r->state, e) < 0 ||
                calib_experts_take(&l->experts, b, &r->state, i, e) < 0)
                return e->code;
        }
    return 0;
}

/* Run the experts, the layer's last part; then send the mark that the layer is
 * complete. */
static int run_experts(struct loop *l, int64_t layer, enum point to,
                       struct err *e)
{
    bool emit = !l->run->c->until && calib_experts_wanted(&l->experts);

    if (!l->experts.experts)
        return 0;
    if (calib_experts_run(&l->experts, emit, to == POINT_OUT, e) < 0)
        return e->code;
    return emit ? send_mark(l, layer, POINT_IN, e) : 0;
}

static int run_points(struct loop *l, struct step *t, enum point to,
                      struct err *e)
{
    /* experts' gap companions need h_ref - h behind the rest of the layer */
    enum point end = l->run->reference && l->experts.experts ? POINT_OUT : to;

    for (enum point at = t->to; at < end; at = t->to) {
        bool emit;

        t->from = at;
        t->to = next_stop(l, t->layer, at);
        emit = t->to < POINT_OUT && wanted(l, t->layer, t->to);
        t->last = t->to == end;
        if (t->to > end) /* the last layer's output is not needed */
            break;
        if (run_step(l, t, emit, e) < 0)
            return e->code;
        if (emit && l->run->c->until && t->to == l->run->c->until->at)
            return stop(l, t, t->to, e);
        if (emit && !l->run->c->until && take_codes(l, t, e) < 0)
            return e->code;
    }
    if (wanted(l, t->layer, POINT_OUT))
        return stop(l, t, POINT_OUT, e);
    return run_experts(l, t->layer, to, e);
}

int loop_layer(struct run *r, int64_t layer, enum point to, struct err *e)
{
    struct step t = { .layer = layer,
                      .to = r->at,
                      .reference = r->reference_at };
    struct loop l = { .run = r };
    int rc;

    if (store_open_act(r->s, r->reference, layer, e) < 0 ||
        calib_experts_open(&l.experts, r, layer, to == POINT_OUT, e) < 0)
        return e->code;
    r->at = r->reference_at = POINT_IN;
    if ((t.to || t.reference) && resume(&l, &t, e) < 0)
        return e->code;
    if (t.to == POINT_OUT && r->c->outputs.count)
        rc = outputs_give(&l.outputs, r, &l.experts, e);
    else
        rc = 0;
    if (rc >= 0)
        rc = run_points(&l, &t, to, e);
    outputs_close(&l.outputs);
    model_free(r->c->m, t.bias);
    calib_experts_close(&l.experts);
    return rc;
}
