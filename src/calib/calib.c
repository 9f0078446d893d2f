/* calib.c - see calib.h. */
#include "calib/calib.h"

#include <stdio.h>
#include <stdlib.h>

#include "calib/emit.h"
#include "calib/spool.h"
#include "common/threads.h"

/* What a tap needs to write a batch's activations. */
struct tapped {
    struct calib *c;
    const struct batch *b;
    int64_t layer;
};

static int write_tapped(void *arg, const struct state *s, struct err *e)
{
    const struct tapped *t = arg;

    (void)s; /* is t->b->s */
    return emit_activation(t->c->out, t->c->m, t->b, t->layer, e);
}

static struct batch *new_batch(struct err *e)
{
    return mem_zero(1, sizeof(struct batch), "batch", e);
}

static void free_batch(struct batch *b)
{
    if (b)
        state_release(&b->s);
    free(b);
}

/* A model whose weights or input overflow is found where it happens. */
static int check_finite(const struct calib *c, const struct batch *b,
                        int64_t layer, struct err *e)
{
    char what[64];

    snprintf(what, sizeof(what), "model.layers.%lld", (long long)layer);
    for (int64_t i = 0; i < b->n; i++)
        if (feed_check_finite(c->m, state_x(&b->s, b->s.first[i]), b->length[i],
                              b->s.hidden_size, what, b->sequence[i], e) < 0)
            return e->code;
    return 0;
}

static void step_progress(struct calib *c, const struct batch *b)
{
    for (int64_t i = 0; i < b->n; i++)
        progress_step(c->progress, NULL,
                      (uint64_t)(b->length[i] * b->s.hidden_size) *
                          (b->s.dtype == DT_BF16 ? 2 : 4));
}

/* ---- one layer ---- */

/* All four activations, and the next hidden states where they are wanted. */
static int run_all(struct calib *c, struct layer *l, struct batch *b,
                   int64_t layer, struct err *e)
{
    struct tapped t = { .c = c, .b = b, .layer = layer };
    struct tap tap = { .fn = write_tapped, .arg = &t };
    enum point end = c->hidden ? POINT_OUT : POINT_MLP_MID;

    if (layer_run(l, &b->s, end, &tap, e) < 0)
        return e->code;
    if (!c->hidden)
        return 0;
    if (check_finite(c, b, layer + 1, e) < 0)
        return e->code;
    return emit_hidden(c->hidden, c->m, b, layer + 1, false, e);
}

/* What is written and read while a batch is computed. */
struct traffic {
    struct calib *c;
    int64_t layer;
    bool act;                   /* inside the layer: activations, too */
    struct batch *write, *read; /* NULL: none */
    int rc;                     /* of the first failure; else of feed_next */
    struct err err;
};

static void move_batches(void *arg)
{
    struct traffic *t = arg;

    t->rc = 0;
    if (t->write)
        t->rc = emit_hidden(t->c->out, t->c->m, t->write, t->layer, t->act,
                            &t->err);
    if (t->rc >= 0 && t->read)
        t->rc = feed_next(t->c->feed, t->read, &t->err);
}

/* Run each batch to a point; the one before is written and the next is read
 * beside it. */
static int stream_batches(struct calib *c, struct layer *l, enum point to,
                          struct batch *slot[3], struct err *e)
{
    bool out = to == POINT_OUT;
    struct traffic t = { .c = c,
                         .layer = feed_layer(c->feed) + out,
                         .act = to != POINT_IN && !out,
                         .read = slot[0] };
    int rc = 0;

    move_batches(&t);
    for (int i = 1; t.rc > 0; i++) {
        struct batch *now = t.read;
        struct threads_task task;

        t.read = slot[i % 3];
        threads_start(&task, move_batches, &t);
        rc = layer_run(l, &now->s, to, NULL, e);
        if (rc >= 0 && out)
            rc = check_finite(c, now, t.layer, e);
        threads_join(&task);
        if (rc < 0)
            return rc;
        step_progress(c, now);
        t.write = now;
    }
    if (t.rc == 0) {
        t.read = NULL;
        move_batches(&t);
    }
    if (t.rc < 0)
        *e = t.err;
    return t.rc;
}

static int run_batches(struct calib *c, struct layer *l, struct err *e)
{
    struct batch *b = new_batch(e);
    int rc = b ? 1 : e->code;

    while (rc > 0 && (rc = feed_next(c->feed, b, e)) > 0) {
        if (run_all(c, l, b, feed_layer(c->feed), e) < 0)
            rc = e->code;
        else
            step_progress(c, b);
    }
    free_batch(b);
    return rc;
}

static int run_to(struct calib *c, struct layer *l, enum point to,
                  struct err *e)
{
    struct batch *slot[3] = { 0 };
    int rc = 0;

    for (size_t i = 0; i < ARRAY_LEN(slot) && !rc; i++)
        if (!(slot[i] = new_batch(e)))
            rc = e->code;
    if (!rc)
        rc = stream_batches(c, l, to, slot, e);
    for (size_t i = 0; i < ARRAY_LEN(slot); i++)
        free_batch(slot[i]);
    return rc;
}

static int check_route(const struct calib *c, enum point to, struct err *e)
{
    enum point at = feed_point(c->feed);

    if (c->to == TO_EMBED && !feed_is_tokens(c->feed))
        return err_set(e, E_DATA, "the input has no tokens to embed");
    if (c->to == TO_ALL && at != POINT_IN)
        return err_set(e, E_DATA,
                       "the input is at %s already: all activations need the "
                       "hidden states that enter the layer",
                       point_name(at));
    if (c->to != TO_EMBED && at >= to)
        return err_set(e, E_DATA, "the input is at %s already", point_name(at));
    return 0;
}

/* Codes of another layer are a mistake of the command line. */
static int check_codes(const struct calib *c, struct err *e)
{
    size_t n = c->codes ? codes_count(c->codes) : 0;
    struct linear l;

    for (size_t i = 0; i < n; i++)
        if (!model_find_linear(model_config(c->m), codes_module(c->codes, i),
                               &l) ||
            l.layer != feed_layer(c->feed))
            return err_set(e, E_DATA, "--codes: '%s' is not in layer %lld",
                           codes_module(c->codes, i),
                           (long long)feed_layer(c->feed));
    return 0;
}

int calib_layer(struct calib *c, struct err *e)
{
    enum point to = c->to == TO_ALL && c->hidden ? POINT_OUT :
                    c->to == TO_ALL              ? POINT_MLP_MID :
                                                   (enum point)(c->to - TO_EMBED);
    struct layer *l = NULL;
    int rc;

    if ((rc = check_route(c, to, e)) < 0 || (rc = check_codes(c, e)) < 0)
        return rc;
    rc = model_load_layer(c->m, feed_layer(c->feed), feed_point(c->feed), to,
                          c->codes, &l, e);
    if (rc >= 0)
        rc = c->to == TO_ALL ? run_batches(c, l, e) : run_to(c, l, to, e);
    layer_release(l);
    return rc;
}

/* ---- all layers ---- */

static int fill_spool(struct calib *c, struct spool *s, struct batch *b,
                      struct err *e)
{
    int rc;

    while ((rc = feed_next(c->feed, b, e)) > 0)
        if ((rc = spool_append(s, b, e)) < 0)
            break;
    model_release_embedding(c->m);
    return rc;
}

/* One layer over all sequences; what leaves the last one is not needed. */
static int run_layer(struct calib *c, struct spool *s, struct batch *b,
                     int64_t layer, struct err *e)
{
    bool last = layer == model_config(c->m)->n_layers - 1;
    enum point to = last ? POINT_MLP_MID : POINT_OUT;
    struct tapped t = { .c = c, .b = b, .layer = layer };
    struct tap tap = { .fn = write_tapped, .arg = &t };
    struct layer *l;
    int64_t next = 0;
    int rc;

    if (model_load_layer(c->m, layer, POINT_IN, to, c->codes, &l, e) < 0)
        return e->code;
    while ((rc = spool_read(s, c->m, &next, b, e)) > 0) {
        if ((rc = layer_run(l, &b->s, to, &tap, e)) < 0)
            break;
        if (!last && ((rc = check_finite(c, b, layer + 1, e)) < 0 ||
                      (rc = spool_rewrite(s, next, b, e)) < 0))
            break;
        step_progress(c, b);
    }
    layer_release(l);
    return rc;
}

static int run_layers(struct calib *c, struct spool *s, struct batch *b,
                      struct err *e)
{
    int64_t first = feed_layer(c->feed);
    int64_t n = model_config(c->m)->n_layers;
    int rc = fill_spool(c, s, b, e);

    c->progress->total = (uint64_t)(spool_count(s) * (n - first));
    c->progress->n_layers = (uint64_t)n;
    for (int64_t i = first; rc >= 0 && i < n; i++) {
        rc = run_layer(c, s, b, i, e);
        c->progress->layers = (uint64_t)i + 1;
    }
    return rc;
}

int calib_model(struct calib *c, struct err *e)
{
    struct spool *s = NULL;
    struct batch *b;
    int rc;

    if (feed_point(c->feed) != POINT_IN)
        return err_set(e, E_DATA,
                       "the input is inside layer %lld: want tokens, or hidden "
                       "states that enter a layer (or --to)",
                       (long long)feed_layer(c->feed));
    b = new_batch(e);
    if (!b)
        return e->code;
    rc = spool_create(&s, c->dir, e);
    if (rc >= 0)
        rc = run_layers(c, s, b, e);
    spool_close(s);
    free_batch(b);
    return rc;
}
