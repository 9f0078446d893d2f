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
    int64_t *order;  /* [sequences]: of the round */
    int64_t *length; /* [batch]: of the step's sequences */
    int32_t *ids;    /* [rows] of the step */
    /* [rows, H] of the step: the original's last stream, elements; the gradient, f32 */
    struct token_rows ref, g;
    int64_t step; /* from 0 */
    /* what one choice of a mixture that is not the original's costs, in nats, about */
    double change;
};

/* ---- a step ---- */

/* Choose its sequences, round after round, each in an order of its own; the last of a
 * round are left out where they are no batch.  Their number of tokens. */
static int64_t choose(struct run *r)
{
    const struct tune_tokens *s = r->t->sequences;
    int64_t batch = r->t->batch, each = s->count / batch, rows = 0;

    if (r->step % each == 0)
        tune_tokens_shuffle(r->t->sequences, r->t->seed,
                            (uint64_t)(r->step / each), r->order);
    for (int64_t i = 0; i < batch; i++) {
        int64_t chosen = r->order[r->step % each * batch + i];

        r->length[i] = s->start[chosen + 1] - s->start[chosen];
        memcpy(r->ids + rows, s->ids + s->start[chosen],
               (size_t)r->length[i] * sizeof(*s->ids));
        rows += r->length[i];
    }
    return rows;
}

static double rate_at(double most, int64_t step, int64_t steps)
{
    double warm = ((double)step + 1) / TUNE_WARM;
    double fall = 0.5 + 0.5 * cos(M_PI * (double)step / (double)steps);

    return most * (warm < 1 ? warm : 1) * fall;
}

double tune_reach(double rate, int64_t steps)
{
    double sum = 0;

    for (int64_t i = 0; i < steps; i++)
        sum += rate_at(rate, i, steps);
    return sum;
}

static int layer_done(void *ctx, int64_t layer, struct err *e)
{
    struct run *r = ctx;
    int rc = r->t->gradients && !r->step ?
                 tuned_write_gradients(r->t->codes, layer, r->t->gradients, e) :
                 0;

    return rc < 0 ? rc :
                    tuned_step(r->t->codes, layer,
                               (float)rate_at(r->t->rate, r->step, r->t->steps),
                               r->step + 1, e);
}

/* *kl: of the step's sequences, the sum, and in g the gradients of the mean. */
static int compare(struct run *r, enum pass_routing routing, int64_t rows,
                   double *kl, struct err *e)
{
    const void *x;

    return pass_forward(r->pass, tuned_weights(r->t->codes), routing, r->ids,
                        r->length, r->t->batch, &x, e) < 0 ?
               e->code :
               kl_head_run(r->head, r->ref.p, x, rows, 1 / (float)rows, r->g.p,
                           kl, e);
}

/* Behind a pass in which routers chose, with the KL own, and one in which the original's
 * choices were held: what another choice costs. */
static void measure_change(struct run *r, int64_t rows, double own, double held)
{
    int64_t changed = pass_changed(r->pass);

    r->change = changed && own > held ? (own - held) / (double)changed : 0;
    info("KL %.3f e-3, with the original's choices of experts %.3f e-3",
         1e3 * own / (double)rows, 1e3 * held / (double)rows);
}

static int take_step(struct run *r, double *kl, struct err *e)
{
    struct model *m = r->t->m;
    bool first = !r->step && model_config(m)->moe.n_experts;
    int64_t rows = choose(r);
    size_t n = (size_t)(rows * model_config(m)->hidden_size);
    const void *x;
    double own;

    if (pass_forward(r->pass, NULL, PASS_FREE, r->ids, r->length, r->t->batch,
                     &x, e) < 0 ||
        model_copy(m, r->ref.p, x, n * (dtype_bits(model_dtype(m)) / 8), e) <
            0 ||
        (first && compare(r, PASS_FREE, rows, &own, e) < 0) ||
        compare(r, PASS_HELD, rows, kl, e) < 0)
        return e->code;
    if (first)
        measure_change(r, rows, own, *kl);
    *kl /= (double)rows;
    if (!isfinite(*kl))
        return err_set(e, E_DATA, "step %lld: the KL is not finite",
                       (long long)r->step + 1);
    return pass_backward(r->pass, r->g.p, r->change / (double)rows, layer_done,
                         r, e);
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
    int64_t all;

    if (t->batch > s->count)
        t->batch = s->count;
    batch = (size_t)t->batch;
    rows = batch * (size_t)s->longest;
    t->progress->total = (uint64_t)t->steps;
    r->order = mem_zero(count, sizeof(*r->order), "tokens", e);
    r->length = mem_zero(batch, sizeof(*r->length), "tokens", e);
    r->ids = mem_zero(rows, sizeof(*r->ids), "tokens", e);
    all = (int64_t)rows * model_config(t->m)->hidden_size;
    if (!r->order || !r->length || !r->ids ||
        token_rows_open(&r->ref, t->m, t->dir, all, e) < 0 ||
        token_rows_open(&r->g, t->m, t->dir, all, e) < 0 ||
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
    free(r.length);
    free(r.ids);
    token_rows_close(&r.ref);
    token_rows_close(&r.g);
    return rc;
}
