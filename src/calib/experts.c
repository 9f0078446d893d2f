/* experts.c - see experts.h. */
#include "calib/experts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/emit.h"

/* Tokens that have sums of outputs at a time: all, or of whole batches as many as
 * calib.expert_sums has room for, but one. */
static int64_t tokens_summed(const struct run *run)
{
    const struct store *s = run->s;
    int64_t row = model_config(run->c->m)->hidden_size * (int64_t)sizeof(float),
            fit = run->c->expert_sums / row;

    if (!model_on_device(run->c->m) || run->c->outputs.count || fit >= s->rows)
        return s->rows;
    for (int64_t i = 0; i < s->n_batches; i++)
        fit = s->batch[i].rows > fit ? s->batch[i].rows : fit;
    return fit;
}

/* Whether they are not all, so that experts run once more for the sums. */
static bool adds_in_parts(const struct calib_experts *ex)
{
    return ex->mix.summed && ex->mix.summed < ex->run->s->rows;
}

int calib_experts_open(struct calib_experts *ex, struct run *run, int64_t layer,
                       bool add_out, struct err *e)
{
    const struct model_config *c = model_config(run->c->m);
    size_t n = (size_t)model_layer_experts(c, layer);
    int64_t sums =
        n && add_out && !run->c->skip_experts ? tokens_summed(run) : 0;

    *ex = (struct calib_experts){ .run = run,
                                  .layer = layer,
                                  .experts = (int64_t)n };
    if (!n)
        return 0;
    ex->stats = mem_zero(n * EXPERT_STATS, sizeof(*ex->stats), "experts", e);
    ex->mark =
        ex->stats ? mem_zero(n * 2, sizeof(*ex->mark), "experts", e) : NULL;
    if (!ex->mark ||
        mixture_open(&ex->mix, run->c->m, layer, run->s->rows, sums,
                     run->c->dir, e) < 0 ||
        (run->reference &&
         mixture_open(&ex->reference, run->c->m, layer, run->s->rows,
                      adds_in_parts(ex) ? 0 : sums, run->c->dir, e) < 0)) {
        calib_experts_close(ex);
        return e->code;
    }
    return 0;
}

void calib_experts_close(struct calib_experts *ex)
{
    mixture_close(&ex->mix);
    mixture_close(&ex->reference);
    free(ex->stats);
    free(ex->mark);
    if (ex->run) {
        model_free(ex->run->c->m, ex->room);
        model_free(ex->run->c->m, ex->share);
    }
    free(ex->host);
    *ex = (struct calib_experts){ 0 };
}

bool calib_experts_wanted(const struct calib_experts *ex)
{
    const struct model_config *c = model_config(ex->run->c->m);
    int64_t n = ex->experts ? model_linear_count(c, ex->layer) : 0;
    struct linear k;

    if (ex->run->c->skip_experts)
        return false;
    for (int64_t i = model_linear_common(c, ex->layer); i < n; i++) {
        model_linear(c, ex->layer, i, &k);
        if (!quantized_has(ex->run->c->codes, k.module))
            return true;
    }
    return false;
}

int calib_experts_take(struct calib_experts *ex, const struct span *b,
                       const struct state *s, bool reference, struct err *e)
{
    if (!ex->experts)
        return 0;
    return mixture_take(reference ? &ex->reference : &ex->mix, s, b->row, e);
}

/* ---- activations ---- */

/* to = the linears of an expert that read `in`, separated by newlines.  False:
 * all of them have codes. */
static bool readers(const struct calib_experts *ex, int64_t expert,
                    enum input_class in, char *to, size_t cap)
{
    const struct model_config *c = model_config(ex->run->c->m);
    int64_t i, end, at = 0;
    bool wanted = false;
    struct linear k;

    *to = 0;
    for (model_linear_range(c, ex->layer, expert, &i, &end); i < end; i++) {
        model_linear(c, ex->layer, i, &k);
        if (k.input != in)
            continue;
        at += snprintf(to + at, cap - (size_t)at, "%s%s", at ? "\n" : "",
                       k.module);
        wanted |= !quantized_has(ex->run->c->codes, k.module);
    }
    return wanted;
}

/* ---- where they go ---- */

/* If layers run on a device, copy n bytes of *rows to the host; valid until the
 * next call. */
static int to_host(struct calib_experts *ex, const void **rows, size_t n,
                   struct err *e)
{
    if (!model_on_device(ex->run->c->m))
        return 0;
    if (mem_grow(&ex->host, n + 1, "activations", e) < 0 ||
        model_get(ex->run->c->m, ex->host, *rows, n, e) < 0)
        return e->code;
    *rows = ex->host;
    return 0;
}

/* Whether an expert's rows are lent: those of all parts are put together, and go
 * out with the last one. */
static bool is_lent(const struct calib_experts *ex, const struct expert_rows *x)
{
    return expert_loans_fit(&ex->run->loans, x->all);
}

/* Lend the payload of f, an expert's rows, or bring it, a part's rows where layers
 * run, to the host. */
static int give(struct calib_experts *ex, const struct expert_rows *x,
                enum expert_rows_kind kind, struct frame *f, struct err *e)
{
    return is_lent(ex, x) ?
               expert_loans_lend(&ex->run->loans, kind, x->turn, f, e) :
               to_host(ex, &f->data, f->len, e);
}

/* ---- companions ---- */

/* Make room for `bytes` of companion rows, where layers run. */
static int reserve_room(struct calib_experts *ex, size_t bytes, struct err *e)
{
    const struct model *m = ex->run->c->m;

    if (bytes <= ex->room_bytes && ex->room)
        return 0;
    model_free(m, ex->room);
    ex->room = NULL;
    if (model_alloc(m, &ex->room, bytes, false, NULL, e) < 0)
        return e->code;
    ex->room_bytes = bytes;
    return 0;
}

/* The router adds the outputs of a token's experts e with weights g_e.  To
 * correct the residual stream by delta, the smallest (least-squares) changes of
 * the experts' outputs are delta g_e / (sum of g²): ex->share[token, choice] =
 * g_e / (sum of g²). */
static int open_shares(struct calib_experts *ex, struct err *e)
{
    const struct routing *g = &ex->mix.routing;
    size_t n = (size_t)(g->n * g->top_k) * sizeof(float);
    const struct model *m = ex->run->c->m;
    float *share;
    int rc;

    if (ex->share)
        return 0;
    share = mem_alloc(n + 1, "shares", e);
    if (!share)
        return e->code;
    for (int64_t t = 0; t < g->n; t++) {
        const float *w = g->weights + t * g->top_k;
        double squares = 0;

        for (int64_t k = 0; k < g->top_k; k++)
            squares += (double)w[k] * (double)w[k];
        for (int64_t k = 0; k < g->top_k; k++)
            share[t * g->top_k + k] =
                squares > 0 ? (float)((double)w[k] / squares) : 0;
    }
    rc = model_alloc(m, (void **)&ex->share, n, true, NULL, e);
    if (rc >= 0)
        rc = model_put(m, ex->share, share, n, e);
    free(share);
    return rc;
}

/* Make the companion's rows of a part, for gate and up drift: x_ref - x; for down
 * gap (experts_add_share()): E_ref(x_ref) - W_down rows, plus the expert's share of
 * h_ref - h, the error of the residual stream before experts are added. */
static int make_companion(struct calib_experts *ex, const struct expert_rows *x,
                          enum input_class in, void *to, struct err *e)
{
    const struct run *run = ex->run;

    if (in == IN_EXPERT)
        return model_subtract(run->c->m, to, x->reference, x->rows, NULL, x->n,
                              model_config(run->c->m)->hidden_size, e);
    return open_shares(ex, e) < 0 ?
               e->code :
               experts_add_share(run->c->m, x, ex->mix.routing.top_k, ex->share,
                                 store_rows(run->reference, 0),
                                 store_rows(run->s, 0), to, e);
}

/* Write the companion of an expert's activation f, or put its rows with those of
 * the parts before. */
static int put_companion(struct calib_experts *ex, const struct expert_rows *x,
                         enum input_class in, const struct frame *f,
                         struct err *e)
{
    enum expert_rows_kind kind =
        in == IN_EXPERT ? EXPERT_ROWS_DRIFT : EXPERT_ROWS_GAP;
    int64_t h = model_config(ex->run->c->m)->hidden_size;
    struct frame g = *f;
    bool lent = is_lent(ex, x);
    void *to;

    g.len = (size_t)(x->n * h) * dtype_bits(f->dtype) / 8;
    if (!lent && reserve_room(ex, g.len, e) < 0)
        return e->code;
    to = lent ? expert_loans_rows(&ex->run->loans, kind, x->turn, ex->row) :
                ex->room;
    g.data = to;
    if (make_companion(ex, x, in, to, e) < 0)
        return e->code;
    if (lent && !x->last)
        return 0;
    return give(ex, x, kind, &g, e) < 0 ?
               e->code :
               emit_companion(ex->run->c->out, &g,
                              in == IN_EXPERT ? COMPANION_DRIFT : COMPANION_GAP,
                              (uint64_t)h, e);
}

/* The frame of a part's rows, or of all of an expert's. */
static struct frame frame_of(struct calib_experts *ex,
                             const struct expert_rows *x, enum input_class in)
{
    const struct model *m = ex->run->c->m;
    const struct model_config *c = model_config(m);
    int64_t width = in == IN_EXPERT ? c->hidden_size : c->moe.width;
    uint64_t rows = (uint64_t)(is_lent(ex, x) ? x->all : x->n);
    struct frame f = { .role = ROLE_ACTIVATION,
                       .dtype = model_dtype(m),
                       .ndim = 2,
                       .dims = { rows, (uint64_t)width },
                       .samples = rows,
                       .sequence = is_lent(ex, x) ? 1 : ++ex->part,
                       .last = x->last,
                       .data = x->rows };

    if (x->last)
        ex->part = 0;
    f.len = rows * (uint64_t)width * dtype_bits(f.dtype) / 8;
    model_activation_name(c, ex->layer, in, x->expert, f.name);
    return f;
}

static int put(struct calib_experts *ex, const struct expert_rows *x,
               enum input_class in, struct err *e)
{
    enum expert_rows_kind kind =
        in == IN_EXPERT ? EXPERT_ROWS_IN : EXPERT_ROWS_MID;
    struct frame f = frame_of(ex, x, in);
    struct calib *c = ex->run->c;
    char modules[3 * MODULE_PATH_MAX];
    bool waits = is_lent(ex, x) && !x->last;

    if (!readers(ex, x->expert, in, modules, sizeof(modules)) && c->feedback)
        return 0;
    f.modules = modules;
    if ((x->reference && put_companion(ex, x, in, &f, e) < 0) ||
        (is_lent(ex, x) &&
         model_copy(c->m,
                    expert_loans_rows(&ex->run->loans, kind, x->turn, ex->row),
                    x->rows, f.len / f.dims[0] * (size_t)x->n, e) < 0) ||
        (!waits &&
         (give(ex, x, kind, &f, e) < 0 || stream_write(c->out, &f, e) < 0)))
        return e->code;
    ex->row = x->last ? 0 : ex->row + x->n;
    if (!x->last || !c->feedback)
        return 0;
    if (run_mark(ex->run, f.name, e) < 0)
        return e->code;
    ex->mark[2 * x->expert + (in == IN_EXPERT_MID)] = ex->run->marks;
    return 0;
}

static int put_in(void *arg, const struct expert_rows *x, struct err *e)
{
    return put(arg, x, IN_EXPERT, e);
}

static int put_mid(void *arg, const struct expert_rows *x, struct err *e)
{
    return put(arg, x, IN_EXPERT_MID, e);
}

/* expert_hooks.codes: wait for the codes of these linears; those used before
 * are dropped. */
static int take_codes(void *arg, const struct linear *l, int n,
                      const struct quantized **codes, struct err *e)
{
    struct calib_experts *ex = arg;
    struct calib *c = ex->run->c;
    bool mid = l->input == IN_EXPERT_MID;
    int (*meanwhile)(void *arg, struct err *e) = ex->meanwhile;

    *codes = c->codes;
    ex->meanwhile = NULL;
    if (meanwhile && meanwhile(ex->arg, e) < 0)
        return e->code;
    if (!c->feedback)
        return 0;
    for (int i = 0; i < ex->n_old && !adds_in_parts(ex); i++)
        quantized_remove(c->codes, ex->old[i].module);
    ex->n_old = n < (int)ARRAY_LEN(ex->old) ? n : (int)ARRAY_LEN(ex->old);
    memcpy(ex->old, l, (size_t)ex->n_old * sizeof(*l));
    return feedback_wait(c->feedback, ex->mark[2 * l->expert + mid], c->codes,
                         e);
}

/* ---- running the experts ---- */

static int put_hitmap(struct calib_experts *ex, struct err *e)
{
    const struct expert_share *of = &ex->mix.of;
    size_t n = (size_t)ex->experts * EXPERT_STATS;
    float *value = mem_alloc(n * sizeof(*value), "hit map", e);
    struct frame f = { .role = ROLE_HITMAP,
                       .dtype = DT_F32,
                       .ndim = 2,
                       .dims = { (uint64_t)ex->experts, EXPERT_STATS },
                       .sequence = of->shares > 1 ? (uint64_t)of->share + 1 : 0,
                       .data = value,
                       .len = n * sizeof(*value) };
    int rc = 0;

    if (!value)
        return e->code;
    layer_tensor_name(ex->layer, "mlp", f.name);
    for (size_t i = 0; i < n && !rc; i++) {
        value[i] = (float)ex->stats[i];
        if (!isfinite(value[i]))
            rc =
                err_set(e, E_DATA, "'%s.experts.%zu': its output is not finite",
                        f.name, i / EXPERT_STATS);
    }
    if (!rc)
        rc = stream_write(ex->run->c->out, &f, e);
    free(value);
    return rc;
}

/* Rows of the batches from i on that have room for sums. */
static int64_t rows_from(const struct store *s, int64_t i, int64_t most)
{
    int64_t n = 0;

    for (; i < s->n_batches && n + s->batch[i].rows <= most; i++)
        n += s->batch[i].rows;
    return n;
}

/* codes: as mixture_run() was told. */
static int add(struct calib_experts *ex, struct mixture *x,
               const struct quantized *codes, const struct store *s,
               struct err *e)
{
    int64_t end = x->summed < s->rows ? 0 : s->rows; /* rows that have sums */

    for (int64_t i = 0; i < s->n_batches; i++) {
        const struct span *b = &s->batch[i];

        if (b->row == end) {
            int64_t n = rows_from(s, i, x->summed);

            if (mixture_run_part(x, codes, b->row, n, e) < 0)
                return e->code;
            end += n;
        }
        if (mixture_add(x, store_rows(s, b->row), b->row, b->rows, e) < 0)
            return e->code;
        if (s == ex->run->s && run_check(ex->run, b, ex->layer + 1, e) < 0)
            return e->code;
        store_leave(s, b);
    }
    return 0;
}

/* Add the experts' outputs to the hidden states, in both streams. */
static int add_all(struct calib_experts *ex, struct err *e)
{
    const struct run *run = ex->run;

    if (add(ex, &ex->mix, run->c->codes, run->s, e) < 0)
        return e->code;
    if (!run->reference)
        return 0;
    if (adds_in_parts(ex)) { /* in the same memory */
        ex->reference.sum = ex->mix.sum;
        ex->reference.summed = ex->mix.summed;
        ex->mix.sum = NULL;
    } else if (mixture_run(&ex->reference, NULL, NULL, NULL, e) < 0) {
        return e->code;
    }
    return add(ex, &ex->reference, NULL, run->reference, e);
}

int calib_experts_run(struct calib_experts *ex, bool emit, bool add_out,
                      struct err *e)
{
    struct expert_hooks hooks = {
        .in = put_in, .mid = put_mid, .codes = take_codes, .arg = ex
    };
    struct calib *c = ex->run->c;
    bool hook = emit && (!c->feedback || calib_experts_wanted(ex));

    if (hook && ex->run->reference) {
        ex->mix.reference = ex->reference.in;
        ex->mix.far = ex->reference.spilled;
    }
    if (!ex->experts)
        return 0;
    if (hook && c->feedback &&
        expert_loans_open(&ex->run->loans, ex->run->s,
                          ex->run->reference != NULL, e) < 0)
        return e->code;
    if (c->skip_experts)
        experts_count(&ex->mix.routing, model_remapped(c->m), ex->experts,
                      ex->stats);
    else if (mixture_run(&ex->mix, c->codes, hook ? &hooks : NULL, ex->stats,
                         e) < 0)
        return e->code;
    if ((emit || c->output == CALIB_HITMAP) && put_hitmap(ex, e) < 0)
        return e->code;
    return add_out && !c->skip_experts ? add_all(ex, e) : 0;
}
