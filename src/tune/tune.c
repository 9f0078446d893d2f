/* tune.c - see tune.h. */
#include "tune/tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/backward.h"
#include "tune/pass.h"

struct run {
    struct tune *t;
    struct pass *pass;
    struct kl_head *head;
    int64_t *order;           /* [sequences]: of the round */
    int64_t *chosen, *length; /* [batch] of the step */
    int32_t *ids;             /* [rows] of the step */
    float *ref, *g;           /* [rows, H] of the step: the original's last
                               * stream, and the gradient */
    int64_t step;             /* from 0 */
};

static int64_t length_of(const struct run *r, int64_t i)
{
    const struct tune_tokens *s = r->t->sequences;

    return s->start[i + 1] - s->start[i];
}

static size_t row_bytes(const struct run *r)
{
    return (size_t)model_config(r->t->m)->hidden_size * sizeof(float);
}

/* Forward pass of the chosen sequences.  Their number of tokens, or an error. */
static int64_t forward(struct run *r, const float **x, struct err *e)
{
    const struct tune_tokens *s = r->t->sequences;
    int64_t rows = 0;

    for (int64_t i = 0; i < r->t->batch; i++) {
        r->length[i] = length_of(r, r->chosen[i]);
        memcpy(r->ids + rows, s->ids + s->start[r->chosen[i]],
               (size_t)r->length[i] * sizeof(*s->ids));
        rows += r->length[i];
    }
    return pass_forward(r->pass, r->ids, r->length, r->t->batch, x, e) < 0 ?
               e->code :
               rows;
}

/* The same of the original model, into r->ref. */
static int forward_original(struct run *r, struct err *e)
{
    const float *x;
    int64_t rows;

    model_tune(r->t->m, NULL);
    rows = forward(r, &x, e);
    model_tune(r->t->m, tuned_weights(r->t->codes));
    if (rows < 0)
        return e->code;
    memcpy(r->ref, x, (size_t)rows * row_bytes(r));
    return 0;
}

/* ---- a step ---- */

/* Choose its sequences, round after round, each in an order of its own; the last of a
 * round are left out where they are no batch. */
static void choose(struct run *r)
{
    int64_t batch = r->t->batch, each = r->t->sequences->count / batch;

    if (r->step % each == 0)
        tune_tokens_shuffle(r->t->sequences, r->t->seed,
                            (uint64_t)(r->step / each), r->order);
    memcpy(r->chosen, r->order + r->step % each * batch,
           (size_t)batch * sizeof(*r->chosen));
}

static double rate_of(const struct run *r)
{
    double at = (double)r->step, warm = (at + 1) / TUNE_WARM;
    double fall = 0.5 + 0.5 * cos(M_PI * at / (double)r->t->steps);

    double rate = r->t->rate > 0 ?
                      r->t->rate :
                      TUNE_RATE / (double)model_config(r->t->m)->hidden_size;

    return rate * (warm < 1 ? warm : 1) * fall;
}

static int layer_done(void *ctx, int64_t layer, struct err *e)
{
    struct run *r = ctx;
    int rc = r->t->gradients && !r->step ?
                 tuned_write_gradients(r->t->codes, layer, r->t->gradients, e) :
                 0;

    tuned_step(r->t->codes, layer, (float)rate_of(r), r->step + 1);
    return rc;
}

static int take_step(struct run *r, double *kl, struct err *e)
{
    const float *x;
    int64_t rows;

    choose(r);
    if (forward_original(r, e) < 0)
        return e->code;
    rows = forward(r, &x, e);
    if (rows < 0)
        return e->code;
    if (kl_head_run(r->head, r->ref, x, rows, 1 / (float)rows, r->g, kl, e) < 0)
        return e->code;
    *kl /= (double)rows;
    if (!isfinite(*kl))
        return err_set(e, E_DATA, "step %lld: the KL is not finite",
                       (long long)r->step + 1);
    return pass_backward(r->pass, r->g, layer_done, r, e);
}

static int take_steps(struct run *r, struct err *e)
{
    struct tune *t = r->t;
    int64_t n = t->steps < TUNE_WARM ? t->steps : TUNE_WARM;

    t->kl[0] = t->kl[1] = 0;
    for (r->step = 0; r->step < t->steps; r->step++) {
        double kl;

        if (take_step(r, &kl, e) < 0)
            return e->code;
        t->kl[0] += r->step < n ? kl / (double)n : 0;
        t->kl[1] += r->step >= t->steps - n ? kl / (double)n : 0;
        progress_step(t->progress, NULL, 0);
        info("step %lld: KL %.3f e-3", (long long)r->step + 1, 1e3 * kl);
    }
    return 0;
}

/* ---- tune_run() ---- */

static int open_run(struct run *r, struct err *e)
{
    struct tune *t = r->t;
    const struct tune_tokens *s = t->sequences;
    size_t batch, rows, count = (size_t)s->count;

    if (t->batch > s->count)
        t->batch = s->count;
    batch = (size_t)t->batch;
    rows = batch * (size_t)s->longest;
    t->progress->total = (uint64_t)t->steps;
    r->order = mem_zero(count, sizeof(*r->order), "tokens", e);
    r->chosen = mem_zero(batch, sizeof(*r->chosen), "tokens", e);
    r->length = mem_zero(batch, sizeof(*r->length), "tokens", e);
    r->ids = mem_zero(rows, sizeof(*r->ids), "tokens", e);
    r->ref = mem_zero(rows, row_bytes(r), "gradients", e);
    r->g = mem_zero(rows, row_bytes(r), "gradients", e);
    if (!r->order || !r->chosen || !r->length || !r->ids || !r->ref || !r->g ||
        pass_open(&r->pass, t->m, t->dir, (int64_t)rows, e) < 0 ||
        model_load_embedding(t->m, e) < 0)
        return e->code;
    return kl_head_open(t->m, &r->head, e);
}

int tune_run(struct tune *t, struct err *e)
{
    struct run r = { .t = t };
    int rc = open_run(&r, e);

    if (rc >= 0)
        rc = take_steps(&r, e);
    model_tune(t->m, NULL);
    kl_head_close(r.head);
    pass_close(r.pass);
    free(r.order);
    free(r.chosen);
    free(r.length);
    free(r.ids);
    free(r.ref);
    free(r.g);
    return rc;
}
