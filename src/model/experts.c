/* experts.c - see moe.h: one pass over the experts of a layer. */
#include <stdlib.h>

#include "common/math/threads.h"
#include "model/expert_rows.h"

enum { GATE, UP, DOWN, THREE };

/* An expert's linears; one that is not loaded has w NULL. */
struct expert {
    struct loaded of[THREE];
};

/* ---- weights ---- */

static int read_expert(struct pass *x, const struct quantized *codes,
                       int64_t expert, int from, int to, struct expert *w,
                       struct err *e)
{
    const struct model_config *c = &x->m->config;
    int64_t common = model_linear_common(c, x->p->layer);

    for (int i = from; i < to; i++) {
        model_linear(c, x->p->layer, common + THREE * expert + i, &w->of[i].of);
        if (model_read_linear(x->m, codes, &w->of[i], e) < 0)
            return e->code;
    }
    return 0;
}

static int place_expert(struct pass *x, int from, int to, struct expert *w,
                        struct err *e)
{
    for (int i = from; i < to; i++)
        if (loaded_place(x->m, &w->of[i], e) < 0)
            return e->code;
    return 0;
}

static int load_expert(struct pass *x, const struct quantized *codes,
                       int64_t expert, int from, int to, struct expert *w,
                       struct err *e)
{
    return read_expert(x, codes, expert, from, to, w, e) < 0 ?
               e->code :
               place_expert(x, from, to, w, e);
}

static void release_expert(struct expert *w)
{
    for (int i = 0; i < THREE; i++)
        loaded_release(&w->of[i]);
}

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

static void finish_expert(struct pass *x, int64_t expert)
{
    double *to = x->p->stats;

    for (int i = 0; to && i < EXPERT_STATS; i++)
        to[expert * EXPERT_STATS + i] = x->stats[i];
    if (x->p->done)
        x->p->done(x->p->done_arg, expert);
}

/* ---- experts that are read ahead ---- */

/* So many experts are in memory: one runs, the others are read, each by a thread, since
 * one cannot keep up with all those that multiply. */
enum { READERS = 4, THREADS_OF_A_READER = 2 };

struct reader {
    struct pass *x;
    const struct quantized *codes;
    int64_t expert;             /* from n_experts on: nothing is read */
    int end;                    /* of the linears with codes, from GATE on */
    struct expert w, reference; /* reference: the checkpoint's, if wanted */
    bool both;
    int rc;
    struct err err;
    struct threads_task task;
};

struct readers {
    struct reader r[READERS];
    int n;
};

/* Background task.  Only the calling thread may use the device, so on a device
 * the linears are only read here. */
static void read_ahead(void *arg)
{
    struct reader *r = arg;
    struct pass *x = r->x;
    int (*load)(struct pass *, const struct quantized *, int64_t, int, int,
                struct expert *, struct err *) =
        x->m->on ? read_expert : load_expert;

    r->rc = 0;
    if (r->expert >= x->n_experts || !pass_tokens_of(x, r->expert))
        return;
    r->rc = load(x, r->codes, r->expert, GATE, r->end, &r->w, &r->err);
    if (r->rc >= 0 && r->both)
        r->rc = load(x, NULL, r->expert, GATE, THREE, &r->reference, &r->err);
}

static void reader_start(struct reader *r, int64_t expert)
{
    r->expert = expert;
    threads_start(&r->task, read_ahead, r);
}

/* Read experts 0, 1, ...: their linears up to `end` with codes, and, both, the
 * checkpoint's. */
static void readers_start(struct readers *s, struct pass *x,
                          const struct quantized *codes, int end, bool both)
{
    int n = threads_count() / THREADS_OF_A_READER;

    *s = (struct readers){ .n = x->m->on || n < 2 ? 2 :
                                n > READERS       ? READERS :
                                                    n };
    for (int i = 0; i < s->n; i++) {
        s->r[i] =
            (struct reader){ .x = x, .codes = codes, .end = end, .both = both };
        reader_start(&s->r[i], i);
    }
}

/* *out: the reader of this expert, the next one, which has read it.  Errors of
 * reading. */
static int readers_next(struct readers *s, int64_t expert, struct reader **out,
                        struct err *e)
{
    struct reader *r = &s->r[expert % s->n];
    struct pass *x = r->x;

    *out = r;
    threads_join(&r->task);
    if (r->rc < 0) {
        *e = r->err;
        return r->rc;
    }
    if (!x->m->on || !pass_tokens_of(x, expert))
        return 0;
    if (place_expert(x, GATE, r->end, &r->w, e) < 0)
        return e->code;
    return r->both ? place_expert(x, GATE, THREE, &r->reference, e) : 0;
}

/* The expert is not needed any more: read another one. */
static void readers_go_on(struct readers *s, struct reader *r)
{
    release_expert(&r->w);
    release_expert(&r->reference);
    reader_start(r, r->expert + s->n);
}

static void readers_end(struct readers *s)
{
    for (int i = 0; i < s->n; i++) {
        threads_join(&s->r[i].task);
        release_expert(&s->r[i].w);
        release_expert(&s->r[i].reference);
    }
}

/* ---- without hooks ---- */

static int run_expert(struct pass *x, int64_t expert, const struct expert *w,
                      struct err *e)
{
    struct part j;
    bool last;

    for (int64_t i = 0; next_part(x, expert, i, &j, &last); i++) {
        if (part_gather(&j, e) < 0 ||
            multiply(x, &w->of[GATE], &w->of[UP], x->in.p, j.n, x->mid.p, e) <
                0 ||
            multiply(x, &w->of[DOWN], NULL, x->mid.p, j.n, x->out.p, e) < 0 ||
            part_scatter(&j, e) < 0)
            return e->code;
    }
    return 0;
}

static int run_plain(struct pass *x, struct err *e)
{
    struct readers s;
    struct reader *r;
    int rc = 0;

    readers_start(&s, x, x->p->codes, THREE, false);
    for (int64_t i = 0; i < x->n_experts && rc >= 0; i++) {
        rc = readers_next(&s, i, &r, e);
        pass_count_tokens(x, i);
        if (rc >= 0 && pass_tokens_of(x, i))
            rc = run_expert(x, i, &r->w, e);
        if (rc >= 0) {
            readers_go_on(&s, r);
            finish_expert(x, i);
        }
    }
    readers_end(&s);
    return rc;
}

/* ---- all experts in memory ---- */

struct experts_kept {
    int64_t n;
    struct expert expert[];
};

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
    for (int64_t i = 0; i < x->n_experts; i++) {
        pass_count_tokens(x, i);
        if (pass_tokens_of(x, i) &&
            run_expert(x, i, &x->p->kept->expert[i], e) < 0)
            return e->code;
        finish_expert(x, i);
    }
    return 0;
}

/* ---- with hooks ---- */

static int send_in(struct pass *x, int64_t expert, struct err *e)
{
    const struct expert_hooks *h = x->p->hooks;
    struct part j;
    bool last;
    int rc;

    if (expert >= x->n_experts)
        return 0;
    for (int64_t i = 0; next_part(x, expert, i, &j, &last); i++) {
        struct expert_rows r = { .expert = expert,
                                 .n = j.n,
                                 .all = pass_tokens_of(x, expert),
                                 .rows = x->in.p,
                                 .slot = x->slot + j.first,
                                 .device_slot = x->device_slot + j.first,
                                 .last = last };

        if (part_gather(&j, e) < 0)
            return e->code;
        if (x->p->reference)
            r.reference = x->in_reference.p;
        if ((rc = h->in(h->arg, &r, e)) < 0)
            return rc;
    }
    return 0;
}

/* Of the two experts whose inputs of down are kept. */
static void *mid_of(const struct pass *x, int64_t expert, int64_t part)
{
    int64_t rows = expert % 2 * pass_most_tokens(x) + part * EXPERT_PART;

    return (char *)x->mids + (size_t)(rows * x->width) * x->m->size;
}

/* x->out = W_down (mid_ref - mid), what E_ref(x_ref) has more than W_down mid
 * and down's bias, where E_ref is the checkpoint's expert, W_down its down, and
 * mid_ref = silu(W_gate x_ref) * (W_up x_ref). */
static int make_gap(struct part *j, const struct expert *reference,
                    const void *mid, struct err *e)
{
    struct loaded down = reference->of[DOWN]; /* without its bias */
    struct pass *x = j->x;

    down.bias = NULL;
    if (multiply(x, &reference->of[GATE], &reference->of[UP], x->in_reference.p,
                 j->n, x->mid_reference.p, e) < 0)
        return e->code;
    if (model_subtract(x->m, x->mid_reference.p, x->mid_reference.p, mid, NULL,
                       j->n, x->width, e) < 0)
        return e->code;
    return multiply(x, &down, NULL, x->mid_reference.p, j->n, x->out.p, e);
}

/* Compute and pass on the inputs of down.  reference: the checkpoint's expert,
 * if the pass has a reference. */
static int make_mid(struct pass *x, int64_t expert, const struct expert *w,
                    const struct expert *reference, struct err *e)
{
    const struct expert_hooks *h = x->p->hooks;
    struct part j;
    bool last;
    int rc;

    for (int64_t i = 0; next_part(x, expert, i, &j, &last); i++) {
        struct expert_rows r = { .expert = expert,
                                 .n = j.n,
                                 .all = pass_tokens_of(x, expert),
                                 .rows = mid_of(x, expert, i),
                                 .slot = x->slot + j.first,
                                 .device_slot = x->device_slot + j.first,
                                 .last = last };

        if (x->p->reference)
            r.reference = x->out.p;
        if (part_gather(&j, e) < 0 ||
            multiply(x, &w->of[GATE], &w->of[UP], x->in.p, j.n,
                     mid_of(x, expert, i), e) < 0 ||
            (r.reference && make_gap(&j, reference, r.rows, e) < 0))
            return e->code;
        if ((rc = h->mid(h->arg, &r, e)) < 0)
            return rc;
    }
    return 0;
}

static int add_out(struct pass *x, int64_t expert, const struct expert *w,
                   struct err *e)
{
    struct part j;
    bool last;

    for (int64_t i = 0; next_part(x, expert, i, &j, &last); i++) {
        if (multiply(x, &w->of[DOWN], NULL, mid_of(x, expert, i), j.n, x->out.p,
                     e) < 0 ||
            part_scatter(&j, e) < 0)
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

/* Pass on the inputs of down to the hook. */
static int send_mid(struct pass *x, int64_t expert, const struct expert *w,
                    struct err *e)
{
    struct expert reference = { 0 };
    int rc = 0;

    if (x->p->reference && pass_tokens_of(x, expert))
        rc = load_expert(x, NULL, expert, GATE, THREE, &reference, e);
    if (rc >= 0)
        rc = make_mid(x, expert, w, &reference, e);
    release_expert(&reference);
    return rc;
}

/* Run down with its codes, and add up. */
static int end_expert(struct pass *x, int64_t expert, struct expert *w,
                      struct err *e)
{
    int rc;

    if (expert < 0)
        return 0;
    pass_count_tokens(x, expert);
    if ((rc = take(x, expert, DOWN, THREE, w, e)) < 0 ||
        (rc = add_out(x, expert, w, e)) < 0)
        return rc;
    release_expert(w);
    finish_expert(x, expert);
    return 0;
}

/* An expert up to the input of its down; then end the one before, of which the
 * codes have had time to come. */
static int run_hooked(struct pass *x, int64_t expert, struct expert *w,
                      struct err *e)
{
    int rc;

    if ((rc = take(x, expert, GATE, DOWN, w, e)) < 0 ||
        (rc = send_mid(x, expert, w, e)) < 0)
        return rc;
    release_expert(w);
    if ((rc = send_in(x, expert + 2, e)) < 0)
        return rc;
    return end_expert(x, expert - 1, w, e);
}

static int reserve_mids(struct pass *x, struct err *e)
{
    int64_t rows = 2 * pass_most_tokens(x);
    size_t bytes = (size_t)(rows * x->width) * x->m->size;

    if (x->m->on)
        return model_alloc(x->m, &x->mids, bytes, true, NULL, e);
    region_init(&x->mid_rows, x->p->dir);
    if (region_reserve(&x->mid_rows, bytes, e) < 0)
        return e->code;
    x->mids = x->mid_rows.p;
    return 0;
}

/* expert_hooks.only.  All codes are there: the hook is asked once. */
static int run_mid_only(struct pass *x, struct err *e)
{
    const struct expert_hooks *h = x->p->hooks;
    const struct quantized *codes = NULL;
    struct linear l[2];
    struct readers s;
    struct reader *r;
    int rc = reserve_mids(x, e);

    for (int i = 0; i < 2; i++)
        model_linear(&x->m->config, x->p->layer,
                     model_linear_common(&x->m->config, x->p->layer) + i,
                     &l[i]);
    if (rc < 0 || (rc = h->codes(h->arg, l, 2, &codes, e)) < 0)
        return rc;
    readers_start(&s, x, codes, DOWN, x->p->reference != NULL);
    for (int64_t i = 0; rc >= 0 && i < x->n_experts; i++) {
        rc = readers_next(&s, i, &r, e);
        pass_count_tokens(x, i);
        if (rc >= 0)
            rc = make_mid(x, i, &r->w, &r->reference, e);
        if (rc >= 0) {
            readers_go_on(&s, r);
            finish_expert(x, i);
        }
    }
    readers_end(&s);
    return rc;
}

static int run_in_only(struct pass *x, struct err *e)
{
    int rc = 0;

    for (int64_t i = 0; rc >= 0 && i < x->n_experts; i++)
        rc = send_in(x, i, e);
    return rc;
}

static int run_all_hooked(struct pass *x, struct err *e)
{
    struct expert w = { 0 };
    int rc = reserve_mids(x, e);

    if (rc >= 0 && (rc = send_in(x, 0, e)) >= 0)
        rc = send_in(x, 1, e);
    for (int64_t i = 0; rc >= 0 && i < x->n_experts; i++) {
        rc = run_hooked(x, i, &w, e);
        release_expert(&w);
    }
    if (rc >= 0)
        rc = end_expert(x, x->n_experts - 1, &w, e);
    release_expert(&w);
    return rc;
}

/* ---- the whole ---- */

static int run_experts(struct pass *x, struct err *e)
{
    if (!x->p->hooks)
        return x->p->kept ? run_kept(x, e) : run_plain(x, e);
    switch (x->p->hooks->only) {
    case EXPERTS_IN: return run_in_only(x, e);
    case EXPERTS_MID: return run_mid_only(x, e);
    default: return run_all_hooked(x, e);
    }
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

    if (pass_sort_tokens(x, e) < 0)
        return e->code;
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
    x->h = c->hidden_size;
    x->width = c->moe.width;
    rc = run(x, e);
    free(x->first);
    free(x->slot);
    model_buffer_release(p->m, &x->in);
    model_buffer_release(p->m, &x->mid);
    model_buffer_release(p->m, &x->in_reference);
    model_buffer_release(p->m, &x->mid_reference);
    model_buffer_release(p->m, &x->out);
    pass_release_slots(x);
    free(x);
    return rc;
}
