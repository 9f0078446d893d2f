/* loop.c - see loop.h. */
#include "calib/loop.h"

#include <stdlib.h>

#include "calib/emit.h"
#include "calib/experts.h"
#include "common/io/sync.h"

/* Hidden states are published this many times as long after the last ones as
 * writing those took, or as it would take at PUBLISH_RATE: it goes on beside the
 * computing, which waits for it at most a sixteenth of the time.  A resumed run
 * goes from the last ones to where it was with the codes that it has, so one
 * that is killed again and again gets on if it lives that long. */
enum { PUBLISH_REST = 16, PUBLISH_SECONDS = 1 };
#define PUBLISH_RATE 1e9 /* bytes a second */

/* ---- which points are put out ---- */

/* Does a linear that reads this input lack codes?  The input of the experts'
 * layer is wanted for any of them: their Hessians may be blended with its. */
static bool wanted(const struct loop *l, int64_t layer, enum point p)
{
    const struct model_config *c = model_config(l->c->m);
    int64_t n = model_linear_common(c, layer);

    for (int64_t i = 0; i < n; i++) {
        struct linear k;

        model_linear(c, layer, i, &k);
        if (k.input == point_input(p) && !codes_has(l->c->codes, k.module))
            return true;
    }
    return p == POINT_MLP_IN && l->routed->experts && routed_wanted(l->routed);
}

/* The first point from p on that is put out; POINT_OUT: none. */
static enum point next_wanted(const struct loop *l, int64_t layer, enum point p)
{
    while (p < POINT_OUT && !wanted(l, layer, p))
        p++;
    return p;
}

/* The next point to stop at: where experts are, their tokens are gathered. */
static enum point next_stop(const struct loop *l, int64_t layer, enum point at)
{
    enum point p = next_wanted(l, layer, at + 1);

    return l->routed->experts && at < POINT_MLP_IN && p > POINT_MLP_IN ?
               POINT_MLP_IN :
               p;
}

/* ---- one step ---- */

/* A model whose weights or input overflow is found where it happens. */
int loop_check(const struct loop *l, const struct span *b, int64_t layer,
               struct err *e)
{
    const struct store *s = l->s;
    int64_t row = b->row, h = model_config(s->m)->hidden_size;
    char what[FRAME_NAME_MAX + 1];

    emit_name(layer, POINT_IN, what);
    for (int64_t i = b->first; i < b->first + b->n; i++) {
        const struct sequence *x = &s->sequence[i];

        if (feed_check_finite(s->m, store_x(s, row), x->length, h, what,
                              x->number, e) < 0)
            return e->code;
        row += x->length;
    }
    return 0;
}

struct step {
    int64_t layer;
    enum point from, to;
    struct layer *weights;
    struct emission *out; /* NULL: nothing is put out */
    bool last;            /* of the layer */
    enum point there;     /* where the second stream is; it may be ahead */
    float *bias;          /* of the linear that it came through last, or NULL */
};

void loop_progress(const struct loop *l, const struct span *b)
{
    const struct model *m = l->c->m;
    size_t row = (size_t)model_config(m)->hidden_size *
                 (model_dtype(m) == DT_BF16 ? 2 : 4);

    for (int64_t i = b->first; i < b->first + b->n; i++)
        progress_step(l->c->progress, NULL,
                      (uint64_t)l->s->sequence[i].length * row);
}

/* Batch b of either store, from one point to another. */
static int run_store(struct loop *l, struct layer *w, const struct store *s,
                     const struct span *b, enum point from, enum point to,
                     struct err *e)
{
    if (store_load(s, b, from, &l->state, e) < 0)
        return e->code;
    store_keep(s, b, &l->state);
    if (layer_run(w, &l->state, to, NULL, e) < 0)
        return e->code;
    return to == POINT_MLP_IN ?
               routed_take(l->routed, b, &l->state, s == l->original, e) :
               0;
}

/* Where the second stream must be for what a stop puts out: behind a linear
 * whose output is wanted. */
static enum point needed(const struct loop *l, int64_t layer, enum point stop)
{
    return stop + (stop < POINT_OUT && wanted(l, layer, stop) &&
                   point_adds(model_config(l->c->m), layer, stop));
}

/* The residual stream is another at the end of such a step. */
static bool changes_x(enum point from, enum point to)
{
    return from < POINT_MLP_IN && to >= POINT_MLP_IN;
}

/* All batches of the second stream to a point, if it is not there yet. */
static int run_original(struct loop *l, struct step *t, enum point to,
                        struct err *e)
{
    const struct store *s = l->original;
    struct layer *w = NULL;
    int rc;

    if (!s || t->there >= to)
        return 0;
    if (changes_x(t->there, to) && publisher_join(&l->publisher, e) < 0)
        return e->code;
    rc = model_load_layer(l->c->m, t->layer, t->there, to, NULL, &w, e);
    for (int64_t i = 0; i < s->n_batches && rc >= 0; i++) {
        rc = run_store(l, w, s, &s->batch[i], t->there, to, e);
        store_leave(s, &s->batch[i]);
    }
    if (rc >= 0) {
        free(t->bias);
        t->bias = layer_take_bias(w, to - 1);
        t->there = to;
    }
    layer_release(w);
    return rc;
}

static int run_batch(struct loop *l, const struct step *t, int64_t i,
                     struct err *e)
{
    const struct span *b = &l->s->batch[i];

    if (run_store(l, t->weights, l->s, b, t->from, t->to, e) < 0 ||
        (t->to == POINT_OUT && loop_check(l, b, t->layer + 1, e) < 0))
        return e->code;
    if (t->last)
        loop_progress(l, b);
    if (t->out)
        return emission_ready(t->out, i, e);
    store_leave(l->s, b);
    return 0;
}

static int run_batches(struct loop *l, const struct step *t, struct err *e)
{
    int rc = 0;

    for (int64_t i = 0; i < l->s->n_batches && rc >= 0; i++)
        rc = run_batch(l, t, i, e);
    return rc;
}

/* Where both streams begin as one, nothing has drifted in front of the first
 * linear. */
static bool parted(const struct loop *l, const struct step *t)
{
    return l->parted || t->layer > feed_layer(l->c->feed) ||
           t->to > POINT_ATTN_IN;
}

/* All batches from one point to another; emit: what is there is put out. */
static int run_step(struct loop *l, struct step *t, bool emit, struct err *e)
{
    struct calib *c = l->c;
    struct emission out = { .w = c->out,
                            .s = l->s,
                            .original = parted(l, t) ? l->original : NULL,
                            .layer = t->layer,
                            .at = t->to };
    int rc;

    if (changes_x(t->from, t->to) && publisher_join(&l->publisher, e) < 0)
        return e->code;
    if (run_original(l, t, needed(l, t->layer, t->to), e) < 0 ||
        model_load_layer(c->m, t->layer, t->from, t->to, c->codes, &t->weights,
                         e) < 0)
        return e->code;
    out.bias = t->bias;
    t->out = emit ? &out : NULL;
    rc = emit ? emission_start(&out, e) : 0;
    if (rc >= 0) {
        rc = run_batches(l, t, e);
        if (emit && emission_finish(&out, rc < 0, e) < 0)
            rc = e->code;
    }
    layer_release(t->weights);
    return rc;
}

int loop_mark(struct loop *l, const char *name, struct err *e)
{
    if (sync_write(l->c->out, name, ++l->marks, e) < 0)
        return e->code;
    return stream_flush(l->c->out, e);
}

static int send_mark(struct loop *l, int64_t layer, enum point at,
                     struct err *e)
{
    char name[FRAME_NAME_MAX + 1];

    emit_name(layer, at, name);
    return loop_mark(l, name, e);
}

/* Wait for the codes of the point at hand, while the second stream, which needs
 * none, goes on.  The mark behind the layer's last ones says that it is
 * whole. */
static int take_codes(struct loop *l, struct step *t, struct err *e)
{
    int64_t layer = t->layer;
    enum point at = t->to, stop = next_stop(l, layer, at);

    if (send_mark(l, layer, at, e) < 0 ||
        (stop < POINT_OUT &&
         run_original(l, t, needed(l, layer, stop), e) < 0) ||
        feedback_wait(l->c->feedback, l->marks, l->c->codes, e) < 0 ||
        codes_check(l->c->codes, e) < 0)
        return e->code;
    return !l->routed->experts && next_wanted(l, layer, at + 1) == POINT_OUT ?
               send_mark(l, layer, POINT_IN, e) :
               0;
}

/* The experts come last, and so does the mark. */
static int run_experts(struct loop *l, int64_t layer, enum point to,
                       struct err *e)
{
    bool emit = routed_wanted(l->routed);

    if (!l->routed->experts)
        return 0;
    if (routed_run(l->routed, emit, to == POINT_OUT, e) < 0)
        return e->code;
    return emit ? send_mark(l, layer, POINT_IN, e) : 0;
}

static int run_points(struct loop *l, struct step *t, enum point to,
                      struct err *e)
{
    /* the experts are to know what the rest of the layer leaves to mend */
    enum point end = l->original && l->routed->experts ? POINT_OUT : to;

    for (enum point at = POINT_IN; at < end; at = t->to) {
        bool emit;

        t->from = at;
        t->to = next_stop(l, t->layer, at);
        emit = t->to < POINT_OUT && wanted(l, t->layer, t->to);
        t->last = t->to == end;
        if (t->to > end) /* the last layer: nobody wants what leaves it */
            break;
        if (run_step(l, t, emit, e) < 0 || (emit && take_codes(l, t, e) < 0))
            return e->code;
    }
    return run_experts(l, t->layer, to, e);
}

int loop_layer(struct loop *l, int64_t layer, enum point to, struct err *e)
{
    struct step t = { .layer = layer };
    struct routed r;
    int rc;

    if (store_open_act(l->s, e) < 0 ||
        (l->original && store_open_act(l->original, e) < 0) ||
        routed_open(&r, l, layer, e) < 0)
        return e->code;
    l->routed = &r;
    rc = run_points(l, &t, to, e);
    free(t.bias);
    l->routed = NULL;
    routed_close(&r);
    return rc;
}

/* ---- hidden states ---- */

void loop_start(struct loop *l)
{
    l->published = seconds_now();
}

/* Seconds between the last states and the next. */
static double publish_rest(const struct loop *l)
{
    double took = l->publisher.seconds;

    if (took <= 0)
        took = (double)store_bytes(l->s) * (l->original ? 2 : 1) / PUBLISH_RATE;
    return took * PUBLISH_REST > PUBLISH_SECONDS ? took * PUBLISH_REST :
                                                   PUBLISH_SECONDS;
}

int loop_publish(struct loop *l, int64_t layer, bool force, struct err *e)
{
    const struct calib *c = l->c;

    if (!c->hidden)
        return 0;
    if (publisher_join(&l->publisher, e) < 0)
        return e->code;
    if (!force && seconds_now() - l->published < publish_rest(l))
        return 0;
    l->publisher = (struct publisher){ .path = c->hidden,
                                       .key = c->key,
                                       .head = c->head,
                                       .s = l->s,
                                       .original = l->original,
                                       .feedback = c->feedback,
                                       .layer = layer,
                                       .mark = l->marks };
    l->published = seconds_now();
    if (publisher_start(&l->publisher, e) < 0)
        return e->code;
    return force ? publisher_join(&l->publisher, e) : 0;
}

void loop_release(struct loop *l)
{
    state_release(&l->state);
}
