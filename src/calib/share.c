/* share.c - see share.h. */
#include "calib/share.h"

#include <stdlib.h>
#include <string.h>

#include "calib/emit.h"
#include "calib/expert_states.h"
#include "calib/outputs.h"
#include "common/math/threads.h"
#include "device/device.h"

/* What a file has of each token: the residual stream and the experts' input, of the
 * model and of the reference. */
enum { STATE, INPUT, KINDS };

/* A frame of rows. */
struct piece {
    int kind;
    bool reference;
    int64_t row, rows;
    uint64_t at; /* of its payload */
    size_t len;
};

/* A part of the tokens. */
struct part {
    struct stream_reader *in;
    int64_t rows[2][KINDS]; /* so far, of both streams */
    struct piece *piece;
    size_t n;
    struct routing routing[2];
    unsigned routed[2];  /* bit k: frame k of enum routed has been read */
    int64_t *keep;       /* [kept]: numbers of the rows that are kept */
    int64_t first, kept; /* first: of all that are kept */
};

struct reading {
    struct calib *c;
    const struct share *s;
    struct part *part; /* [s->parts] */
    int64_t layer;     /* -1: not known yet */
    int streams;
    char *to[2][KINDS]; /* rows of all tokens that are kept */
    size_t row;         /* bytes */
    struct threads_error error;
};

/* ---- what there is ---- */

static bool is_name(const struct reading *r, const struct frame *f,
                    enum point at, bool reference)
{
    const struct emit_place p = { r->layer, at,
                                  reference ? COMPANION_ORIGINAL :
                                              COMPANION_NONE };
    char name[FRAME_NAME_MAX + 1];

    emit_state_name(&p, name);
    return !strcmp(f->name, name);
}

static int take_rows(struct reading *r, struct part *p, const struct frame *f,
                     uint64_t at, struct err *e)
{
    int kind = f->role == ROLE_HIDDEN ? STATE : INPUT;
    enum point point = kind == STATE ? POINT_OUT : POINT_MLP_IN;
    bool reference = !is_name(r, f, point, false);
    int64_t *rows = &p->rows[reference][kind];

    if ((reference && (!is_name(r, f, point, true) || r->streams < 2)) ||
        f->ndim != 2 || f->dtype != model_dtype(r->c->m) ||
        f->dims[1] * dtype_bits(f->dtype) / 8 != r->row ||
        f->dims[0] > INT32_MAX)
        return err_set(e, E_DATA, "'%s': no rows of this model's experts",
                       f->name);
    if (mem_grow(&p->piece, (p->n + 1) * sizeof(*p->piece), "states", e) < 0)
        return e->code;
    p->piece[p->n++] = (struct piece){ kind,  reference,
                                       *rows, (int64_t)f->dims[0],
                                       at,    f->len };
    *rows += (int64_t)f->dims[0];
    return 0;
}

static int take_routing(struct reading *r, struct part *p,
                        const struct frame *f, uint64_t at, struct err *e)
{
    const struct model_config *c = model_config(r->c->m);
    int64_t n = p->rows[0][STATE];

    for (int i = 0; i < r->streams; i++)
        for (enum routed k = 0; k < ROUTED; k++) {
            struct routing *to = &p->routing[i];
            struct frame want;

            expert_states_frame(c, r->layer, k, i, n, &want);
            if (strcmp(f->name, want.name) != 0 || f->dtype != want.dtype)
                continue;
            if (f->len != want.len || (to->experts && to->n != n))
                return err_set(e, E_DATA, "'%s': of another number of tokens",
                               f->name);
            if (!to->experts &&
                (routing_create(to, n, c->moe.top_k, e) < 0 ||
                 routing_want_mass(to, c->moe.n_experts, e) < 0))
                return e->code;
            p->routed[i] |= 1u << k;
            return stream_payload(p->in, at, expert_states_payload(to, k),
                                  f->len, e) < 0 ?
                       e->code :
                       expert_states_check(c, &want, to, k, e);
        }
    return 0;
}

/* E_DATA: something is missing. */
static int check_part(const struct reading *r, const struct part *p,
                      struct err *e)
{
    int64_t n = p->rows[0][STATE];
    bool good = n > 0;

    for (int i = 0; i < r->streams; i++)
        good = good && p->routed[i] == (1u << ROUTED) - 1 &&
               p->routing[i].n == n && p->rows[i][STATE] == n &&
               p->rows[i][INPUT] == n;
    return good ? 0 :
                  err_set(e, E_DATA,
                          "no states behind layer %lld without its experts",
                          (long long)r->layer);
}

/* Read the headers, and the routing. */
static int look(struct reading *r, struct part *p, struct err *e)
{
    struct frame f;
    uint64_t at;
    int rc;

    while ((rc = stream_skim(p->in, &f, &at, e)) > 0) {
        if (r->layer < 0)
            r->layer = tensor_name_layer(f.name);
        if (f.data && f.len)
            return err_set(e, E_USAGE, "want a file of states, no pipe");
        if (r->layer < 0 || r->layer >= model_config(r->c->m)->n_layers ||
            !model_layer_experts(model_config(r->c->m), r->layer))
            return err_set(e, E_DATA, "'%s': of no layer with experts", f.name);
        if (((f.role == ROLE_HIDDEN || f.role == ROLE_ACTIVATION) &&
             take_rows(r, p, &f, at, e) < 0) ||
            (f.role == ROLE_ROUTING && take_routing(r, p, &f, at, e) < 0))
            return e->code;
    }
    return rc < 0 ? rc : check_part(r, p, e);
}

/* Whether a token has an expert of this share. */
static bool is_ours(const struct reading *r, const struct part *p,
                    int64_t token)
{
    for (int i = 0; i < r->streams; i++)
        for (int64_t k = 0, n = p->routing[i].top_k; k < n; k++)
            if (p->routing[i].experts[token * n + k] % r->s->shares ==
                r->s->share)
                return true;
    return false;
}

/* Number the tokens that are kept; returns how many there are, of all parts. */
static int64_t keep(struct reading *r, struct err *e)
{
    int64_t all = 0;

    for (int64_t i = 0; i < r->s->parts; i++) {
        struct part *p = &r->part[i];

        p->first = all;
        p->keep = mem_alloc((size_t)p->rows[0][STATE] * sizeof(*p->keep),
                            "tokens", e);
        if (!p->keep)
            return e->code;
        for (int64_t t = 0; t < p->rows[0][STATE]; t++)
            if (is_ours(r, p, t))
                p->keep[p->kept++] = t;
        all += p->kept;
    }
    return all;
}

/* ---- rows ---- */

/* The first of the kept tokens from `row` on. */
static int64_t first_from(const struct part *p, int64_t row)
{
    int64_t low = 0, high = p->kept;

    while (low < high) {
        int64_t middle = (low + high) / 2;

        if (p->keep[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The rows of a frame that are kept. */
static int read_piece(struct reading *r, struct part *p, const struct piece *x,
                      void **room, struct err *e)
{
    char *to = r->to[x->reference][x->kind];

    if (mem_grow(room, x->len, "states", e) < 0 ||
        stream_payload(p->in, x->at, *room, x->len, e) < 0)
        return e->code;
    for (int64_t i = first_from(p, x->row);
         i < p->kept && p->keep[i] < x->row + x->rows; i++)
        memcpy(to + (size_t)(p->first + i) * r->row,
               (char *)*room + (size_t)(p->keep[i] - x->row) * r->row, r->row);
    return 0;
}

static void read_parts(void *ctx, size_t begin, size_t end)
{
    struct reading *r = ctx;
    void *room = NULL;
    struct err e;

    for (size_t i = begin; i < end; i++) {
        struct part *p = &r->part[i];
        int rc = 0;

        for (size_t k = 0; k < p->n && rc >= 0; k++)
            rc = read_piece(r, p, &p->piece[k], &room, &e);
        if (rc < 0)
            threads_error_add(&r->error, i, &e);
    }
    free(room);
}

/* The routing of all tokens that are kept. */
static void join_routing(const struct reading *r, int stream,
                         struct routing *to)
{
    int64_t k = to->top_k;

    for (int64_t i = 0; i < r->s->parts; i++) {
        const struct part *p = &r->part[i];
        const struct routing *from = &p->routing[stream];

        for (int64_t t = 0; t < p->kept; t++) {
            int64_t a = (p->first + t) * k, b = p->keep[t] * k;

            memcpy(to->experts + a, from->experts + b,
                   (size_t)k * sizeof(*to->experts));
            memcpy(to->weights + a, from->weights + b,
                   (size_t)k * sizeof(*to->weights));
            memcpy(to->scores + a, from->scores + b,
                   (size_t)k * sizeof(*to->scores));
        }
        for (int64_t x = 0; x < model_config(r->c->m)->moe.n_experts; x++)
            to->mass[x] += from->mass[x];
    }
}

/* Where layers run on a device, inputs go there by way of `host`. */
static int read_rows(struct reading *r, struct run *run,
                     struct calib_experts *ex, struct err *e)
{
    struct store *store[] = { run->s, run->reference };
    struct mixture *mix[] = { &ex->mix, &ex->reference };
    size_t bytes = (size_t)run->s->rows * r->row;
    bool there = model_on_device(r->c->m);
    struct region host[2];
    int rc = 0;

    for (int i = 0; i < r->streams; i++) {
        region_init(&host[i], r->c->dir);
        if (there && rc >= 0)
            rc = region_reserve(&host[i], bytes, e);
        r->to[i][STATE] = store_x(store[i], 0);
        r->to[i][INPUT] = there ? host[i].p : mix[i]->in;
        join_routing(r, i, &mix[i]->routing);
    }
    threads_error_init(&r->error);
    if (rc >= 0) {
        threads_for((size_t)r->s->parts, 1, read_parts, r);
        rc = threads_error_take(&r->error, e);
    }
    for (int i = 0; i < r->streams; i++) {
        if (there && rc >= 0)
            rc = model_put(r->c->m, mix[i]->in, host[i].p, bytes, e);
        region_release(&host[i]);
        if (rc >= 0)
            rc = store_place(store[i], e);
    }
    return rc;
}

/* ---- running ---- */

static int run_reference(void *arg, struct err *e)
{
    struct calib_experts *ex = arg;

    return mixture_run(&ex->reference, NULL, NULL, NULL, e);
}

/* The experts of the share, with their outputs. */
static int run_experts(struct reading *r, struct run *run,
                       struct calib_experts *ex, struct err *e)
{
    const struct stream_output out = { .path = r->s->outputs,
                                       .key = r->c->key };
    int64_t *first =
        mem_alloc((size_t)(r->s->parts + 1) * sizeof(*first), "tokens", e);
    struct outputs_writer o = {
        .m = r->c->m, .layer = r->layer, .parts = r->s->parts, .first = first
    };
    char mark[TENSOR_NAME_MAX];
    int rc = first ? 0 : e->code;

    for (int64_t i = 0; first && i < r->s->parts; i++) {
        first[i] = r->part[i].first;
        first[i + 1] = first[i] + r->part[i].kept;
    }
    if (rc >= 0 && r->s->outputs)
        rc = outputs_create(&o, &out, ex, e);
    if (rc >= 0 && o.w)
        rc = stream_inherit(o.w, r->c->head, e);
    if (o.w && run->reference) {
        ex->meanwhile = run_reference;
        ex->arg = ex;
    }
    if (rc >= 0)
        rc = calib_experts_run(ex, true, false, e);
    if (o.w && rc < 0)
        stream_abort(o.w, e);
    else if (o.w)
        rc = outputs_finish(&o, e);
    free(first);
    layer_tensor_name(r->layer, "", mark);
    return rc < 0 ? rc : run_mark(run, mark, e);
}

static int run_kept(struct reading *r, struct run *run, int64_t kept,
                    struct err *e)
{
    struct calib *c = r->c;
    struct calib_experts ex;
    int rc = store_make(run->s, kept, e);

    if (rc >= 0 && run->reference)
        rc = store_make(run->reference, kept, e);
    if (rc < 0 || device_open(c->device, &forward_plugin, e) < 0 ||
        model_use_device(c->m, 1, e) < 0 ||
        calib_experts_open(&ex, run, r->layer, false, e) < 0)
        return e->code;
    ex.mix.of = ex.reference.of =
        (struct expert_share){ r->s->share, r->s->shares };
    rc = read_rows(r, run, &ex, e);
    if (rc >= 0)
        rc = run_experts(r, run, &ex, e);
    calib_experts_close(&ex);
    return rc;
}

static int open_parts(struct reading *r, struct err *e)
{
    const struct stream_expect expect = { .key = r->s->expect_key };
    int rc = 0;

    r->part = mem_zero((size_t)r->s->parts, sizeof(*r->part), "parts", e);
    if (!r->part)
        return e->code;
    for (int64_t i = 0; i < r->s->parts && rc >= 0; i++) {
        rc = stream_open(&r->part[i].in, r->s->file[i], &expect, e);
        if (rc >= 0 && look(r, &r->part[i], e) < 0)
            rc = err_prefix(e, "'%s'", r->s->file[i]);
    }
    return rc;
}

static void close_parts(struct reading *r)
{
    for (int64_t i = 0; r->part && i < r->s->parts; i++) {
        struct part *p = &r->part[i];

        stream_close(p->in);
        routing_release(&p->routing[0]);
        routing_release(&p->routing[1]);
        free(p->piece);
        free(p->keep);
    }
    free(r->part);
}

int share_run(struct calib *c, const struct share *s, struct err *e)
{
    struct store states = { 0 }, reference = { 0 };
    struct run run = { .c = c,
                       .s = &states,
                       .reference = c->reference ? &reference : NULL };
    struct reading r = { .c = c,
                         .s = s,
                         .layer = -1,
                         .streams = c->reference ? 2 : 1,
                         .row = (size_t)model_config(c->m)->hidden_size *
                                dtype_bits(model_dtype(c->m)) / 8 };
    int64_t kept;
    int rc = open_parts(&r, e);

    if (rc < 0)
        return rc;
    c->head = stream_head(r.part[0].in);
    store_init(&states, c->m, c->dir);
    if (stream_is_pipe(c->out))
        states.ledger = c->ledger;
    if (run.reference)
        store_init_reference(&reference, &states);
    kept = keep(&r, e);
    rc = kept < 0 ? e->code : stream_inherit(c->out, c->head, e);
    if (rc >= 0)
        rc = run_kept(&r, &run, kept, e);
    if (rc < 0)
        return rc; /* a thread may still use the store */
    close_parts(&r);
    run_release(&run);
    store_release(&states);
    store_release(&reference);
    return 0;
}
