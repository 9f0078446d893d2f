/* calib.c - see calib.h. */
#include "calib/calib.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "calib/emit.h"
#include "calib/experts.h"

/* ---- with the weights as they are ---- */

/* What a tap needs to write a batch's activations. */
struct tapped {
    struct loop *l;
    const struct span *b;
    int64_t layer;
};

static int write_tapped(void *arg, const struct state *s, struct err *e)
{
    const struct tapped *t = arg;

    return emit_activation(t->l->c->out, t->l->s, t->b, t->layer, s->at, s->act,
                           e);
}

/* A batch through a layer; the tokens of its experts are gathered on the way. */
static int pass_batch(struct loop *l, struct routed *r, struct layer *w,
                      const struct span *b, enum point to, struct err *e)
{
    struct tapped t = { .l = l, .b = b, .layer = r->layer };
    struct tap tap = { .fn = write_tapped, .arg = &t };
    const struct tap *on = l->c->output == CALIB_ACTIVATIONS ? &tap : NULL;

    if (store_load(l->s, b, POINT_IN, &l->state, e) < 0)
        return e->code;
    if (r->experts && (layer_run(w, &l->state, POINT_MLP_IN, on, e) < 0 ||
                       routed_take(r, b, &l->state, false, e) < 0))
        return e->code;
    if (layer_run(w, &l->state, to, on, e) < 0 ||
        (to == POINT_OUT && loop_check(l, b, r->layer + 1, e) < 0))
        return e->code;
    loop_progress(l, b);
    store_leave(l->s, b);
    return 0;
}

/* One layer over all batches; its activations come out unless something else
 * is wanted. */
static int pass(struct loop *l, int64_t layer, enum point to, struct err *e)
{
    struct calib *c = l->c;
    struct layer *w = NULL;
    struct routed r;
    int rc;

    if (routed_open(&r, l, layer, e) < 0)
        return e->code;
    rc = model_load_layer(c->m, layer, POINT_IN, to, c->codes, &w, e);
    for (int64_t i = 0; i < l->s->n_batches && rc >= 0; i++)
        rc = pass_batch(l, &r, w, &l->s->batch[i], to, e);
    layer_release(w);
    if (rc >= 0)
        rc = routed_run(&r, c->output == CALIB_ACTIVATIONS, to == POINT_OUT, e);
    routed_close(&r);
    return rc;
}

static int put_hidden(struct loop *l, int64_t layer, struct err *e)
{
    for (int64_t i = 0; i < l->s->n_batches; i++)
        if (emit_hidden(l->c->out, l->s, &l->s->batch[i], layer, "", e) < 0)
            return e->code;
    return 0;
}

/* ---- codes ---- */

/* Codes of another layer are a mistake of the command line. */
static int check_codes(const struct calib *c, int64_t layer, size_t from,
                       struct err *e)
{
    struct linear l;

    for (size_t i = from; i < codes_count(c->codes); i++)
        if (!model_find_linear(model_config(c->m), codes_module(c->codes, i),
                               &l) ||
            l.layer != layer)
            return err_set(e, E_DATA, "--codes: '%s' is not in layer %lld",
                           codes_module(c->codes, i), (long long)layer);
    return 0;
}

/* The codes that the layer has already. */
static int read_codes(const struct calib *c, int64_t layer, struct err *e)
{
    const char *percent = c->codes_of ? strchr(c->codes_of, '%') : NULL;
    size_t n = codes_count(c->codes);
    char path[PATH_MAX];

    if (!percent)
        return 0;
    if (snprintf(path, sizeof(path), "%.*s%lld%s", (int)(percent - c->codes_of),
                 c->codes_of, (long long)layer,
                 percent + 1) >= (int)sizeof(path))
        return err_set(e, E_USAGE, "--codes: '%s' is too long", c->codes_of);
    if (access(path, F_OK))
        return 0;
    if (codes_read(c->codes, path, e) < 0)
        return e->code;
    return check_codes(c, layer, n, e);
}

/* ---- layers ---- */

static int run_layer(struct loop *l, int64_t layer, struct err *e)
{
    struct calib *c = l->c;
    bool last = layer == model_config(c->m)->n_layers - 1;
    bool leave = c->output == CALIB_HIDDEN || (c->hidden && !c->whole) ||
                 (c->whole && !last);
    enum point to = leave ? POINT_OUT : POINT_MLP_MID;
    size_t codes = codes_count(c->codes);

    if (read_codes(c, layer, e) < 0)
        return e->code;
    if (c->feedback ? loop_layer(l, layer, to, e) < 0 :
                      pass(l, layer, to, e) < 0)
        return e->code;
    codes_truncate(c->codes, codes);
    if (c->output == CALIB_HIDDEN)
        return put_hidden(l, layer + 1, e);
    return leave ? loop_publish(l, layer + 1, !c->whole, e) : 0;
}

static int run_layers(struct loop *l, struct err *e)
{
    struct calib *c = l->c;
    int64_t first = feed_layer(c->feed), n = model_config(c->m)->n_layers;
    int64_t end = c->whole ? n : first + 1;

    if (c->output == CALIB_EMBED)
        return put_hidden(l, first, e);
    c->progress->total = (uint64_t)(l->s->n_sequences * (end - first));
    c->progress->n_layers = c->whole ? (uint64_t)n : 0;
    for (int64_t i = first; i < end; i++) {
        if (run_layer(l, i, e) < 0)
            return e->code;
        c->progress->layers = (uint64_t)i + 1;
    }
    return publisher_join(&l->publisher, e);
}

/* Do both have the same sequences? */
static bool alike(const struct store *s, const struct store *t)
{
    if (s->n_sequences != t->n_sequences)
        return false;
    for (int64_t i = 0; i < s->n_sequences; i++)
        if (s->sequence[i].length != t->sequence[i].length ||
            s->sequence[i].number != t->sequence[i].number)
            return false;
    return true;
}

/* All sequences, and where they are wanted the original model's states: those
 * that follow, else the same. */
static int fill(struct loop *l, struct store *original, struct err *e)
{
    struct feed *f = l->c->feed;

    if (store_fill(l->s, f, e) < 0)
        return e->code;
    l->parted = feed_original(f);
    if (l->parted && !l->original)
        return err_set(e, E_DATA,
                       "the input has states of the original model, too: want "
                       "--propagate both");
    if (!l->original)
        return 0;
    if (!l->parted)
        return store_copy(original, l->s, e);
    if (store_fill(original, f, e) < 0)
        return e->code;
    return alike(l->s, original) ?
               0 :
               err_set(e, E_DATA,
                       "the input has other sequences of the original model");
}

int calib_run(struct calib *c, struct err *e)
{
    struct store s = { 0 }, original = { 0 };
    struct loop l = { .c = c,
                      .s = &s,
                      .original = c->both && c->feedback ? &original : NULL };
    int rc = 0;

    if (c->output == CALIB_EMBED && !feed_is_tokens(c->feed))
        return err_set(e, E_DATA, "the input has no tokens to embed");
    if (!c->whole)
        rc = check_codes(c, feed_layer(c->feed), 0, e);
    store_init(&s, c->m, c->dir);
    if (l.original)
        store_init_beside(&original, &s);
    if (rc >= 0)
        rc = fill(&l, &original, e);
    model_release_embedding(c->m);
    loop_start(&l);
    if (rc >= 0)
        rc = run_layers(&l, e);
    if (rc < 0)
        return rc; /* a thread may still use the store */
    loop_release(&l);
    store_release(&s);
    store_release(&original);
    return 0;
}
