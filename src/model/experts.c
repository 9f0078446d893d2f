/* experts.c - see moe.h: one pass over the experts of a layer. */
#include <stdlib.h>
#include <string.h>

#include "model/expert_weights.h"

/* ---- a part of an expert's rows ---- */

/* out[n, ...] = product of in[n, ...]. */
static int multiply(struct pass *x, const struct loaded *first,
                    const struct loaded *second, const void *in, int64_t n,
                    void *out, struct err *e)
{
    struct product p = { .m = x->m,
                         .first = first,
                         .second = second,
                         .x = in,
                         .rows = n,
                         .out = out };

    return n ? product_run(&p, e) : 0;
}

/* Part number i of an expert's tokens; false: there are no more.  An expert
 * without tokens has one empty part. */
static bool next_part(struct pass *x, int64_t expert, int64_t i, struct part *j,
                      bool *last)
{
    int64_t n = pass_tokens_of(x, expert), left = n - i * EXPERT_PART;

    if (i && left <= 0)
        return false;
    *j = (struct part){ .x = x, .first = x->first[expert] + i * EXPERT_PART };
    j->n = left < EXPERT_PART ? left : EXPERT_PART;
    *last = left <= EXPERT_PART;
    return true;
}

/* Add the outputs of the part, which is in x->out. */
static int end_part(struct part *j, int64_t expert, int64_t turn, bool last,
                    struct err *e)
{
    struct pass *x = j->x;
    const struct expert_outputs *o = x->p->outputs;
    const struct expert_rows r = { .expert = expert,
                                   .n = j->n,
                                   .turn = turn,
                                   .all = pass_tokens_of(x, expert),
                                   .rows = x->out.p,
                                   .slot = x->slot + j->first,
                                   .device_slot = x->device_slot + j->first,
                                   .last = last };

    if (part_scatter(j, e) < 0)
        return e->code;
    return o && o->put ? o->put(o->arg, &r, e) : 0;
}

static void finish_expert(struct pass *x, int64_t expert)
{
    int64_t at = expert * EXPERT_STATS;

    if (x->p->stats) {
        memcpy(x->p->stats + at, x->counts + at,
               EXPERT_STATS * sizeof(*x->counts));
        x->p->stats[at + EXPERT_NORMS] = x->norms;
    }
    x->norms = 0;
    if (x->p->done)
        x->p->done(x->p->done_arg, expert);
}

/* ---- without hooks ---- */

static int run_expert(struct pass *x, int64_t turn, const struct expert *w,
                      struct err *e)
{
    int64_t expert = pass_expert(x, turn);
    struct part j;
    bool last;

    for (int64_t i = 0; next_part(x, expert, i, &j, &last); i++) {
        if (part_gather(&j, NULL, e) < 0 ||
            multiply(x, &w->of[GATE], &w->of[UP], x->in.p, j.n, x->mid.p, e) <
                0 ||
            multiply(x, &w->of[DOWN], NULL, x->mid.p, j.n, x->out.p, e) < 0 ||
            end_part(&j, expert, turn, last, e) < 0)
            return e->code;
    }
    return 0;
}

static int run_plain(struct pass *x, struct err *e)
{
    struct expert_readers s;
    struct expert *w;
    int rc = 0;

    expert_readers_start(&s, x, x->p->codes);
    for (int64_t t = 0; t < x->turns && rc >= 0; t++) {
        int64_t i = pass_expert(x, t);

        rc = expert_readers_next(&s, t, &w, e);
        if (rc >= 0 && pass_tokens_of(x, i))
            rc = run_expert(x, t, w, e);
        if (rc >= 0) {
            readers_go_on(&s.ahead, t);
            finish_expert(x, i);
        }
    }
    readers_end(&s.ahead);
    return rc;
}

/* ---- outputs that others have computed ---- */

static int take_outputs(struct pass *x, int64_t expert, void *host,
                        struct err *e)
{
    const struct expert_outputs *o = x->p->outputs;
    struct part j;
    bool last;

    for (int64_t i = 0; next_part(x, expert, i, &j, &last) && j.n; i++) {
        size_t bytes = (size_t)(j.n * x->h) * x->m->size;

        if (o->get(o->arg, expert, j.n, host ? host : x->out.p, e) < 0 ||
            (host && model_put(x->m, x->out.p, host, bytes, e) < 0) ||
            part_scatter(&j, e) < 0)
            return e->code;
    }
    return 0;
}

static int run_given(struct pass *x, struct err *e)
{
    void *host = NULL;
    int rc = 0;

    if (x->m->on) {
        host =
            mem_pages((size_t)(EXPERT_PART * x->h) * x->m->size, "experts", e);
        rc = host ? 0 : e->code;
    }
    for (int64_t t = 0; t < x->turns && rc >= 0; t++) {
        int64_t i = pass_expert(x, t);

        rc = take_outputs(x, i, host, e);
        if (rc >= 0)
            finish_expert(x, i);
    }
    free(host);
    return rc;
}

/* ---- all experts in memory ---- */

int experts_load(struct model *m, int64_t layer, struct experts_kept **out,
                 struct err *e)
{
    const struct experts_pass p = { .m = m, .layer = layer };
    int64_t n = model_layer_experts(&m->config, layer);
    struct pass *x = mem_zero(1, sizeof(*x), "experts", e);
    struct experts_kept *k = NULL;
    int rc;

    if (x)
        k = mem_zero(1, sizeof(*k) + (size_t)n * sizeof(k->expert[0]),
                     "experts", e);
    rc = k ? 0 : e->code;
    if (k) {
        x->p = &p;
        x->m = m;
        k->n = n;
    }
    for (int64_t i = 0; i < n && rc >= 0; i++)
        rc = load_expert(x, NULL, i, GATE, THREE, &k->expert[i], e);
    if (rc < 0)
        experts_release(k);
    free(x);
    *out = rc < 0 ? NULL : k;
    return rc < 0 ? rc : 0;
}

void experts_release(struct experts_kept *k)
{
    for (int64_t i = 0; k && i < k->n; i++)
        release_expert(&k->expert[i]);
    free(k);
}

static int run_kept(struct pass *x, struct err *e)
{
    for (int64_t t = 0; t < x->turns; t++) {
        int64_t i = pass_expert(x, t);

        if (pass_tokens_of(x, i) &&
            run_expert(x, t, &x->p->kept->expert[i], e) < 0)
            return e->code;
        finish_expert(x, i);
    }
    return 0;
}

/* ---- with hooks ---- */

/* Of the two experts of which rows are kept: part `part` of [2, tokens, width]. */
static void *kept_rows(const struct pass *x, void *all, int64_t width,
                       int64_t turn, int64_t part)
{
    int64_t rows = turn % 2 * pass_most_tokens(x) + part * EXPERT_PART;

    return (char *)all + (size_t)(rows * width) * x->m->size;
}

static void *mid_of(const struct pass *x, int64_t turn, int64_t part)
{
    return kept_rows(x, x->mids, x->width, turn, part);
}

/* Where the part's rows of the reference are, if the pass has one; or NULL. */
static void *reference_of(const struct pass *x, int64_t turn, int64_t part)
{
    return x->references ? kept_rows(x, x->references, x->h, turn, part) :
                           x->in_reference.p;
}

static int send_in(struct pass *x, int64_t turn, struct err *e)
{
    const struct expert_hooks *h = x->p->hooks;
    int64_t expert = pass_expert(x, turn);
    struct part j;
    bool last;
    int rc;

    if (turn >= x->turns)
        return 0;
    for (int64_t i = 0; next_part(x, expert, i, &j, &last); i++) {
        void *to = reference_of(x, turn, i);
        struct expert_rows r = { .expert = expert,
                                 .n = j.n,
                                 .turn = turn,
                                 .all = pass_tokens_of(x, expert),
                                 .rows = x->in.p,
                                 .reference = to,
                                 .slot = x->slot + j.first,
                                 .device_slot = x->device_slot + j.first,
                                 .last = last };

        if (part_gather(&j, to, e) < 0)
            return e->code;
        if ((rc = h->in(h->arg, &r, e)) < 0)
            return rc;
    }
    return 0;
}

/* x->out = W_down (mid_ref - mid), what E_ref(x_ref), x_ref = in, has more than W_down
 * mid and down's bias, where E_ref is the checkpoint's expert, W_down its down, and
 * mid_ref = silu(W_gate x_ref) * (W_up x_ref). */
static int make_gap(struct part *j, const struct expert *reference,
                    const void *in, const void *mid, struct err *e)
{
    struct loaded down = reference->of[DOWN]; /* without its bias */
    struct pass *x = j->x;

    down.bias = NULL;
    if (multiply(x, &reference->of[GATE], &reference->of[UP], in, j->n,
                 x->mid_reference.p, e) < 0)
        return e->code;
    if (model_subtract(x->m, x->mid_reference.p, x->mid_reference.p, mid, NULL,
                       j->n, x->width, e) < 0)
        return e->code;
    return multiply(x, &down, NULL, x->mid_reference.p, j->n, x->out.p, e);
}

/* Compute and pass on the inputs of down.  reference: the checkpoint's expert,
 * if the pass has a reference. */
static int make_mid(struct pass *x, int64_t turn, const struct expert *w,
                    const struct expert *reference, struct err *e)
{
    const struct expert_hooks *h = x->p->hooks;
    int64_t expert = pass_expert(x, turn);
    struct part j;
    bool last;
    int rc;

    for (int64_t i = 0; next_part(x, expert, i, &j, &last); i++) {
        void *in = reference_of(x, turn, i);
        struct expert_rows r = { .expert = expert,
                                 .n = j.n,
                                 .turn = turn,
                                 .all = pass_tokens_of(x, expert),
                                 .rows = mid_of(x, turn, i),
                                 .slot = x->slot + j.first,
                                 .device_slot = x->device_slot + j.first,
                                 .last = last };

        if (reference)
            r.reference = x->out.p;
        if (part_gather(&j, x->references ? NULL : in, e) < 0 ||
            multiply(x, &w->of[GATE], &w->of[UP], x->in.p, j.n,
                     mid_of(x, turn, i), e) < 0 ||
            (r.reference && make_gap(&j, reference, in, r.rows, e) < 0))
            return e->code;
        if ((rc = h->mid(h->arg, &r, e)) < 0)
            return rc;
    }
    return 0;
}

static int add_out(struct pass *x, int64_t turn, const struct expert *w,
                   struct err *e)
{
    int64_t expert = pass_expert(x, turn);
    struct part j;
    bool last;

    for (int64_t i = 0; next_part(x, expert, i, &j, &last); i++) {
        if (multiply(x, &w->of[DOWN], NULL, mid_of(x, turn, i), j.n, x->out.p,
                     e) < 0 ||
            end_part(&j, expert, turn, last, e) < 0)
            return e->code;
    }
    return 0;
}

/* Load linears from..to-1 of an expert, with the codes that the hook waits
 * for. */
static int take(struct pass *x, int64_t expert, int from, int to,
                struct expert *w, struct err *e)
{
    const struct expert_hooks *h = x->p->hooks;
    const struct quantized *codes = NULL;
    struct linear l[THREE];
    int rc;

    for (int i = from; i < to; i++)
        model_linear(&x->m->config, x->p->layer,
                     model_linear_common(&x->m->config, x->p->layer) +
                         THREE * expert + i,
                     &l[i - from]);
    rc = h->codes(h->arg, l, to - from, &codes, e);
    if (rc < 0 || !pass_tokens_of(x, expert))
        return rc;
    return load_expert(x, codes, expert, from, to, w, e);
}

/* Pass on the inputs of down to the hook.  references: the checkpoint's experts, if the
 * pass has a reference. */
static int send_mid(struct pass *x, int64_t turn, const struct expert *w,
                    struct expert_readers *references, struct err *e)
{
    struct expert *reference = NULL;
    int rc = 0;

    if (x->p->reference)
        rc = expert_readers_next(references, turn, &reference, e);
    if (rc >= 0)
        rc = make_mid(x, turn, w, reference, e);
    if (rc >= 0 && x->p->reference)
        readers_go_on(&references->ahead, turn);
    return rc;
}

/* Run down with its codes, and add up. */
static int end_expert(struct pass *x, int64_t turn, struct expert *w,
                      struct err *e)
{
    int64_t expert = pass_expert(x, turn);
    int rc;

    if (turn < 0)
        return 0;
    if ((rc = take(x, expert, DOWN, THREE, w, e)) < 0 ||
        (rc = add_out(x, turn, w, e)) < 0)
        return rc;
    release_expert(w);
    finish_expert(x, expert);
    return 0;
}

/* An expert up to the input of its down; then end the one before, of which the
 * codes have had time to come. */
static int run_hooked(struct pass *x, int64_t turn, struct expert *w,
                      struct expert_readers *references, struct err *e)
{
    int rc;

    if ((rc = take(x, pass_expert(x, turn), GATE, DOWN, w, e)) < 0 ||
        (rc = send_mid(x, turn, w, references, e)) < 0)
        return rc;
    release_expert(w);
    if ((rc = send_in(x, turn + 2, e)) < 0)
        return rc;
    return end_expert(x, turn - 1, w, e);
}

static int reserve_mids(struct pass *x, struct err *e)
{
    int64_t rows = 2 * pass_most_tokens(x);
    size_t bytes = (size_t)(rows * x->width) * x->m->size;

    if (x->m->on && x->p->far &&
        model_alloc(x->m, &x->references, (size_t)(rows * x->h) * x->m->size,
                    true, NULL, e) < 0)
        return e->code;
    if (x->m->on)
        return model_alloc(x->m, &x->mids, bytes, true, NULL, e);
    region_init(&x->mid_rows, x->p->dir);
    if (region_reserve(&x->mid_rows, bytes, e) < 0)
        return e->code;
    x->mids = x->mid_rows.p;
    return 0;
}

static int run_hooks(struct pass *x, struct err *e)
{
    struct expert_readers references = { 0 };
    struct expert w = { 0 };
    int rc = reserve_mids(x, e);

    if (rc >= 0 && x->p->reference)
        expert_readers_start(&references, x, NULL);
    if (rc >= 0 && (rc = send_in(x, 0, e)) >= 0)
        rc = send_in(x, 1, e);
    for (int64_t t = 0; rc >= 0 && t < x->turns; t++) {
        rc = run_hooked(x, t, &w, &references, e);
        release_expert(&w);
    }
    readers_end(&references.ahead);
    if (rc >= 0)
        rc = end_expert(x, x->turns - 1, &w, e);
    release_expert(&w);
    return rc;
}

/* ---- the whole ---- */

static int run_experts(struct pass *x, struct err *e)
{
    if (x->p->outputs && x->p->outputs->get)
        return run_given(x, e);
    if (x->p->hooks)
        return run_hooks(x, e);
    return x->p->kept ? run_kept(x, e) : run_plain(x, e);
}

static int reserve(const struct pass *x, int64_t part, struct buffer *in,
                   struct buffer *mid, struct err *e)
{
    return model_reserve(x->m, in, part, x->h, x->m->size, "experts", e) < 0 ?
               e->code :
               model_reserve(x->m, mid, part, x->width, x->m->size, "experts",
                             e);
}

static int run(struct pass *x, struct err *e)
{
    int64_t most, part;

    if (pass_sort_tokens(x, e) < 0 || pass_count_tokens(x, e) < 0)
        return e->code;
    if (pass_runs_together(x))
        return pass_place_slots(x, e) < 0 ? e->code : pass_run_together(x, e);
    most = pass_most_tokens(x);
    part = most < EXPERT_PART ? most : EXPERT_PART;
    if (reserve(x, part, &x->in, &x->mid, e) < 0 ||
        (x->p->reference &&
         reserve(x, part, &x->in_reference, &x->mid_reference, e) < 0) ||
        model_reserve(x->m, &x->out, part, x->h, x->m->size, "experts", e) <
            0 ||
        (x->m->on && pass_place_slots(x, e) < 0) || run_experts(x, e) < 0)
        return e->code;
    return x->m->on ? pass_add_norms(x, e) : 0;
}

int experts_run(const struct experts_pass *p, struct err *e)
{
    const struct model_config *c = &p->m->config;
    struct pass *x = mem_zero(1, sizeof(*x), "experts", e);
    int rc;

    if (!x)
        return e->code;
    x->p = p;
    x->m = p->m;
    x->n_experts = model_layer_experts(c, p->layer);
    x->turns = x->n_experts;
    if (p->of.shares)
        x->turns =
            (x->n_experts - p->of.share + p->of.shares - 1) / p->of.shares;
    x->h = c->hidden_size;
    x->width = c->moe.width;
    rc = run(x, e);
    free(x->first);
    free(x->slot);
    free(x->counts);
    model_buffer_release(p->m, &x->in);
    model_buffer_release(p->m, &x->mid);
    model_buffer_release(p->m, &x->in_reference);
    model_buffer_release(p->m, &x->mid_reference);
    model_buffer_release(p->m, &x->out);
    pass_release_slots(x);
    free(x);
    return rc;
}
