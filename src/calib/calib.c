/* calib.c - see calib.h. */
#include "calib/calib.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "calib/emit.h"
#include "calib/experts.h"
#include "calib/loop.h"
#include "device/device.h"

/* ---- without feedback ---- */

static bool writes(const struct run *r)
{
    return r->c->output == CALIB_ACTIVATIONS && !r->silent;
}

/* The argument of the tap that writes a batch's activations. */
struct tapped {
    struct run *r;
    const struct span *b;
    int64_t layer;
};

static int write_tapped(void *arg, const struct state *s, struct err *e)
{
    const struct tapped *t = arg;
    const struct model *m = t->r->c->m;
    const void *rows = s->act;
    size_t bytes =
        (size_t)(s->rows * point_width(model_config(m), t->layer, s->at)) *
        dtype_bits(s->dtype) / 8;

    if (model_on_device(m)) {
        if (mem_grow(&t->r->tapped, bytes, "activations", e) < 0 ||
            model_get(m, t->r->tapped, s->act, bytes, e) < 0)
            return e->code;
        rows = t->r->tapped;
    }
    return emit_activation(t->r->c->out, t->r->s, t->b, t->layer, s->at, rows,
                           e);
}

/* Run a batch through a layer up to `to`; at POINT_MLP_IN its tokens are routed
 * and gathered for the experts. */
static int pass_batch(struct run *r, struct calib_experts *ex, struct layer *w,
                      const struct span *b, enum point to, struct err *e)
{
    struct tapped t = { .r = r, .b = b, .layer = ex->layer };
    struct tap tap = { .fn = write_tapped, .arg = &t };
    const struct tap *on = writes(r) ? &tap : NULL;

    if (store_load(r->s, b, POINT_IN, &r->state, e) < 0)
        return e->code;
    if (ex->experts && (layer_run(w, &r->state, POINT_MLP_IN, on, e) < 0 ||
                        calib_experts_take(ex, b, &r->state, false, e) < 0))
        return e->code;
    if (layer_run(w, &r->state, to, on, e) < 0 ||
        (to == POINT_OUT && run_check(r, b, ex->layer + 1, e) < 0))
        return e->code;
    run_progress(r, b);
    store_leave(r->s, b);
    return 0;
}

/* Run all batches through a layer; writes its activations if that is the output
 * asked for. */
static int pass(struct run *r, int64_t layer, enum point to, struct err *e)
{
    struct calib *c = r->c;
    struct layer *w = NULL;
    struct calib_experts ex;
    int rc;

    if (calib_experts_open(&ex, r, layer, to == POINT_OUT, e) < 0)
        return e->code;
    rc = model_load_layer(c->m, layer, POINT_IN, to, c->codes, &w, e);
    for (int64_t i = 0; i < r->s->n_batches && rc >= 0; i++)
        rc = pass_batch(r, &ex, w, &r->s->batch[i], to, e);
    layer_release(w);
    if (rc >= 0)
        rc = calib_experts_run(&ex, writes(r), to == POINT_OUT, e);
    calib_experts_close(&ex);
    return rc;
}

static int put_hidden(struct run *r, int64_t layer, struct err *e)
{
    for (int64_t i = 0; i < r->s->n_batches; i++)
        if (emit_hidden(r->c->out, r->s, &r->s->batch[i], layer, COMPANION_NONE,
                        &r->rows, e) < 0)
            return e->code;
    return 0;
}

/* ---- codes ---- */

/* E_DATA: one of the codes from number `from` on is of another layer. */
static int check_codes(const struct calib *c, int64_t layer, size_t from,
                       struct err *e)
{
    struct linear l;

    for (size_t i = from; i < quantized_count(c->codes); i++)
        if (!model_find_linear(model_config(c->m),
                               quantized_module(c->codes, i), &l) ||
            l.layer != layer)
            return err_set(e, E_DATA, "--codes: '%s' is not in layer %lld",
                           quantized_module(c->codes, i), (long long)layer);
    return 0;
}

/* Read the file with codes of this layer, if there is one (calib.codes_of). */
static int read_codes(const struct calib *c, int64_t layer, struct err *e)
{
    const char *percent = c->codes_of ? strchr(c->codes_of, '%') : NULL;
    size_t n = quantized_count(c->codes);
    char path[PATH_MAX];

    if (!percent)
        return 0;
    if (snprintf(path, sizeof(path), "%.*s%lld%s", (int)(percent - c->codes_of),
                 c->codes_of, (long long)layer,
                 percent + 1) >= (int)sizeof(path))
        return err_set(e, E_USAGE, "--codes: '%s' is too long", c->codes_of);
    if (access(path, F_OK))
        return 0;
    if (quantized_read(c->codes, path, e) < 0)
        return e->code;
    return check_codes(c, layer, n, e);
}

int calib_codes(struct calib *c, const char *const *file, int n, struct err *e)
{
    if (quantized_create(&c->codes, e) < 0)
        return e->code;
    for (int i = 0; i < n; i++) {
        if (!strchr(file[i], '%')) {
            if (quantized_read(c->codes, file[i], e) < 0)
                return e->code;
        } else if (c->codes_of) {
            return err_set(e, E_USAGE, "--codes: '%s': one %% is enough",
                           file[i]);
        } else {
            c->codes_of = file[i];
        }
    }
    return 0;
}

/* ---- layers ---- */

static int run_layer(struct run *r, int64_t layer, struct err *e)
{
    struct calib *c = r->c;
    bool last = layer == model_config(c->m)->n_layers - 1;
    bool points = c->until && c->until->at > POINT_IN; /* it stops at points */
    bool ends = c->until && layer == c->until->layer;
    bool leave = c->output == CALIB_HIDDEN || (c->hidden && !c->whole) ||
                 (c->whole && !last);
    enum point to =
        leave || points || (ends && c->hidden) ? POINT_OUT : POINT_MLP_MID;
    size_t codes = quantized_count(c->codes);

    if (read_codes(c, layer, e) < 0)
        return e->code;
    r->silent = c->until && !ends;
    if (c->feedback || points ? loop_layer(r, layer, to, e) < 0 :
                                pass(r, layer, to, e) < 0)
        return e->code;
    quantized_truncate(c->codes, codes);
    if (c->output == CALIB_HIDDEN)
        return put_hidden(r, layer + 1, e);
    if (c->until)
        return ends && !points ? run_publish(r, layer + 1, true, e) : 0;
    return leave ? run_publish(r, layer + 1, !c->whole, e) : 0;
}

static int run_layers(struct run *r, struct err *e)
{
    struct calib *c = r->c;
    int64_t first = batch_reader_layer(c->batches),
            n = model_config(c->m)->n_layers;
    int64_t end = c->until ? c->until->layer + 1 : c->whole ? n : first + 1;

    if (c->output == CALIB_EMBED)
        return put_hidden(r, first, e);
    c->progress->total = (uint64_t)(r->s->n_sequences * (end - first));
    c->progress->n_layers = c->whole ? (uint64_t)n : 0;
    for (int64_t i = first; i < end; i++) {
        if (run_layer(r, i, e) < 0)
            return e->code;
        c->progress->layers = (uint64_t)i + 1;
    }
    return publisher_join(&r->publisher, e);
}

/* Whether both have the same sequences: numbers and lengths. */
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

/* E_DATA: the states are at a point where this run cannot begin. */
static int check_start(const struct calib *c, struct err *e)
{
    int64_t layer = batch_reader_layer(c->batches);
    enum point at = batch_reader_point(c->batches);
    const struct calib_stop *u = c->until;

    if (at && (!u || !u->at))
        return err_set(e, E_DATA,
                       "the states are inside of layer %lld: want --until a "
                       "point",
                       (long long)layer);
    if (u && (layer > u->layer || (layer == u->layer && at && at >= u->at)))
        return err_set(e, E_DATA, "the states are behind the end of --until");
    return 0;
}

/* Read the other parts of the tokens. */
static int fill_parts(const struct run *r, struct err *e)
{
    const struct calib *c = r->c;
    int rc = 0;

    for (int64_t i = 1; i < c->parts && rc >= 0; i++) {
        const struct batch_part part = { i, c->parts };
        struct batch_reader *f = NULL;
        struct stream_reader *in;

        rc = stream_open(&in, c->input, NULL, e);
        if (rc < 0)
            return rc;
        rc = batch_reader_open(&f, in, c->m, 0, &part, NULL, e);
        if (rc >= 0)
            rc = store_fill(r->s, f, e);
        batch_reader_close(f);
        stream_close(in);
    }
    return rc;
}

/* Read all sequences; and, for a reference stream, its states: those that
 * follow in the input, else a copy. */
static int fill(struct run *r, struct store *reference, struct err *e)
{
    struct batch_reader *f = r->c->batches;

    if (check_start(r->c, e) < 0 || store_fill(r->s, f, e) < 0 ||
        (batch_reader_is_tokens(f) && fill_parts(r, e) < 0))
        return e->code;
    r->at = batch_reader_point(f);
    r->parted = batch_reader_reference(f);
    if (r->parted && !r->reference)
        return err_set(e, E_DATA,
                       "the input has states of the original model, too: want "
                       "--propagate both");
    if (!r->reference)
        return 0;
    if (!r->parted)
        return r->at ?
                   err_set(e, E_DATA,
                           "the input has no states of the original model") :
                   store_copy(reference, r->s, e);
    if (store_fill(reference, f, e) < 0)
        return e->code;
    r->reference_at = batch_reader_point(f);
    return alike(r->s, reference) ?
               0 :
               err_set(e, E_DATA,
                       "the input has other sequences of the original model");
}

int calib_finish(struct calib *c, struct err *e)
{
    struct stream_writer *w = c->out;

    c->out = NULL;
    if (stream_finish(w, e) < 0)
        return e->code;
    return c->feedback ? feedback_finish(c->feedback, e) : 0;
}

int calib_run(struct calib *c, struct err *e)
{
    struct store s = { 0 }, reference = { 0 };
    struct run r = { .c = c,
                     .s = &s,
                     .reference = c->reference && (c->feedback || c->until) ?
                                      &reference :
                                      NULL };
    int rc = 0;

    if (c->output == CALIB_EMBED && !batch_reader_is_tokens(c->batches))
        return err_set(e, E_DATA, "the input has no tokens to embed");
    if (!c->whole)
        rc = check_codes(c, batch_reader_layer(c->batches), 0, e);
    store_init(&s, c->m, c->dir);
    if (c->feedback && stream_is_pipe(c->out))
        s.ledger = c->ledger;
    if (r.reference)
        store_init_reference(&reference, &s);
    if (rc >= 0)
        rc = fill(&r, &reference, e);
    if (rc >= 0 && (rc = device_open(c->device, &forward_plugin, e)) >= 0)
        rc = model_use_device(c->m, store_longest(&s), e);
    if (rc >= 0 && (rc = store_place(&s, e)) >= 0 && r.reference)
        rc = store_place(&reference, e);
    model_release_embedding(c->m);
    run_start(&r);
    if (rc >= 0)
        rc = run_layers(&r, e);
    /* before a store's gigabytes are given back: other tools wait for the end */
    if (rc >= 0)
        rc = calib_finish(c, e);
    if (rc < 0)
        return rc; /* a thread may still use the store */
    run_release(&r);
    store_release(&s);
    store_release(&reference);
    return 0;
}
