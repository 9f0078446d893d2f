/* eval.c - see eval.h. */
#include "eval/eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/io/region.h"
#include "common/math/threads.h"
#include "model/moe.h"

enum {
    BLOCK_MAX = 1 << 24, /* elements of a block of rows, at most, but */
    BLOCK_ROWS_MIN = 64, /* at least so many rows */
    BLOCK_ROWS_MAX = 1024
};

enum { ORIGINAL, OTHER, SIDES };

struct side {
    const char *dir;
    struct model *model;
    struct region hidden; /* [tokens of the corpus, model_row()], elements */
    struct head *head;
    void *x;     /* [block, H], elements */
    float *rows; /* [block, row_width()]: what is compared */
};

struct eval {
    struct side side[SIDES];
    size_t row_bytes; /* of one token's hidden state */
    const char *tmp;
    enum dtype dtype;
    bool by_layer, states;
};

/* ---- checking that both are of one model ---- */

static int same_size(const struct eval *v, const char *what, int64_t original,
                     int64_t other, struct err *e)
{
    if (original == other)
        return 0;
    return err_set(
        e, E_CONFIG,
        "'%s': %s is %" PRId64 ", '%s' has %" PRId64 ": not the same model",
        v->side[OTHER].dir, what, other, v->side[ORIGINAL].dir, original);
}

static int same_model(const struct eval *v, struct err *e)
{
    const struct model_config *a = model_config(v->side[ORIGINAL].model);
    const struct model_config *b = model_config(v->side[OTHER].model);

    if (strcmp(a->family->model_type, b->family->model_type))
        return err_set(e, E_CONFIG,
                       "'%s': model_type is %s, '%s' has %s: not the same "
                       "model",
                       v->side[OTHER].dir, b->family->model_type,
                       v->side[ORIGINAL].dir, a->family->model_type);
    if (same_size(v, "vocab_size", a->vocab_size, b->vocab_size, e) < 0 ||
        same_size(v, "hidden_size", a->hidden_size, b->hidden_size, e) < 0 ||
        same_size(v, "intermediate_size", a->intermediate_size,
                  b->intermediate_size, e) < 0 ||
        same_size(v, "num_hidden_layers", a->n_layers, b->n_layers, e) < 0 ||
        same_size(v, "num_attention_heads", a->n_heads, b->n_heads, e) < 0 ||
        same_size(v, "num_key_value_heads", a->n_kv_heads, b->n_kv_heads, e) <
            0 ||
        same_size(v, "head_dim", a->head_dim, b->head_dim, e) < 0 ||
        same_size(v, "the width of states", model_row(a), model_row(b), e) <
            0 ||
        same_size(v, "num_experts_per_tok", a->moe.top_k, b->moe.top_k, e) < 0)
        return e->code;
    return 0;
}

int eval_open(struct eval **out, const struct eval_params *p, struct err *e)
{
    struct eval *v = mem_zero(1, sizeof(*v), "eval", e);

    *out = NULL;
    if (!v)
        return e->code;
    if (access(p->tmp, W_OK | X_OK)) {
        free(v);
        return err_set(e, E_CREATE, "'%s': takes no temporary file:", p->tmp);
    }
    v->tmp = p->tmp;
    v->by_layer = p->by_layer;
    v->states = p->states;
    v->dtype = p->dtype;
    v->side[ORIGINAL].dir = p->original;
    v->side[OTHER].dir = p->other;
    for (int i = 0; i < SIDES; i++) {
        region_init(&v->side[i].hidden, p->tmp);
        if (model_open(&v->side[i].model, v->side[i].dir, p->dtype, e) < 0) {
            eval_close(v);
            return e->code;
        }
        v->states |= model_headless(v->side[i].model);
    }
    if (same_model(v, e) < 0) {
        eval_close(v);
        return e->code;
    }
    v->row_bytes = (size_t)model_row(model_config(v->side[ORIGINAL].model)) *
                   (p->dtype == DT_BF16 ? sizeof(uint16_t) : sizeof(float));
    *out = v;
    return 0;
}

bool eval_states(const struct eval *v)
{
    return v->states;
}

int64_t eval_vocab(const struct eval *v)
{
    return model_config(v->side[ORIGINAL].model)->vocab_size;
}

int64_t eval_layers(const struct eval *v)
{
    return model_config(v->side[ORIGINAL].model)->n_layers;
}

int64_t eval_variants(const struct eval *v)
{
    return v->by_layer ? eval_layers(v) : 1;
}

size_t eval_compared(const struct eval *v, const struct corpus *c)
{
    return v->states ? c->start[c->count] : c->positions;
}

uint64_t eval_passes(const struct eval *v)
{
    uint64_t n = (uint64_t)eval_layers(v);

    return v->by_layer ? n * (n + 1) / 2 + n : SIDES * n;
}

/* ---- hidden states, layer by layer ---- */

/* Address of the hidden state of the corpus's token t. */
static void *hidden(const struct eval *v, const struct side *s, size_t t)
{
    return (char *)s->hidden.p + t * v->row_bytes;
}

/* The end of the batch that begins with sequence `first`. */
static size_t batch_end(const struct corpus *c, size_t first)
{
    size_t end = first + 1;

    while (end < c->count && c->start[end + 1] - c->start[first] <= BATCH_ROWS)
        end++;
    return end;
}

/* Embed the corpus, with room for `copies` copies of its states. */
static int enter(struct eval *v, struct side *s, const struct corpus *c,
                 size_t copies, struct err *e)
{
    size_t total = c->start[c->count], n, bytes;
    int rc;

    if (size_mul(total, v->row_bytes, &bytes) ||
        size_mul(bytes, copies, &bytes))
        return err_set(e, E_TEMP, "hidden states: too many tokens");
    if (region_reserve(&s->hidden, bytes, e) < 0)
        return e->code;
    rc = model_load_embedding(s->model, e);
    for (size_t t = 0; rc >= 0 && t < total; t += n) {
        n = total - t < BATCH_ROWS ? total - t : BATCH_ROWS;
        rc = model_embed(s->model, c->ids + t, (int64_t)n, hidden(v, s, t), e);
        region_leave(&s->hidden, t * v->row_bytes, n * v->row_bytes);
    }
    model_release_embedding(s->model);
    return rc < 0 ? rc : 0;
}

/* A corpus that runs through the layers of one side. */
struct walk {
    struct side *s;
    const struct corpus *c;
    struct state state;
    int64_t *length; /* [c->count]: scratch, lengths of a batch's sequences */
};

/* Run sequences first..end-1 through a layer, in place.  mix: gathers the
 * tokens of routed experts, which run later; NULL: the layer has none. */
static int run_batch(struct eval *v, struct walk *w, struct layer *l,
                     struct mixture *mix, size_t first, size_t end,
                     struct err *e)
{
    struct side *s = w->s;
    struct state *state = &w->state;
    const struct corpus *c = w->c;
    size_t at = c->start[first], bytes;

    for (size_t i = first; i < end; i++)
        w->length[i - first] = (int64_t)(c->start[i + 1] - c->start[i]);
    if (state_prepare(state, s->model, POINT_IN, w->length,
                      (int64_t)(end - first), e) < 0)
        return e->code;
    bytes = (c->start[end] - at) * v->row_bytes;
    if (!model_on_device(s->model))
        state->x = hidden(v, s, at);
    else if (model_put(s->model, state->x, hidden(v, s, at), bytes, e) < 0)
        return e->code;
    if ((mix && (layer_run(l, state, POINT_MLP_IN, NULL, e) < 0 ||
                 mixture_take(mix, state, (int64_t)at, e) < 0)) ||
        layer_run(l, state, POINT_OUT, NULL, e) < 0)
        return e->code;
    if (model_on_device(s->model) &&
        model_get(s->model, hidden(v, s, at), state->x, bytes, e) < 0)
        return e->code;
    region_leave(&s->hidden, at * v->row_bytes, bytes);
    return 0;
}

/* Add the experts' outputs to n tokens, in pieces of what `state` has room
 * for. */
static int add_experts(struct eval *v, struct side *s,
                       const struct mixture *mix, const struct state *state,
                       size_t n, struct err *e)
{
    const struct model *m = s->model;
    size_t k;

    if (!model_on_device(m))
        return mixture_add(mix, s->hidden.p, 0, (int64_t)n, e);
    for (size_t t = 0; t < n; t += k) {
        k = n - t < (size_t)state->rows ? n - t : (size_t)state->rows;
        if (model_put(m, state->x, hidden(v, s, t), k * v->row_bytes, e) < 0 ||
            mixture_add(mix, state->x, (int64_t)t, (int64_t)k, e) < 0 ||
            model_get(m, hidden(v, s, t), state->x, k * v->row_bytes, e) < 0)
            return e->code;
    }
    return 0;
}

static int run_layer(struct eval *v, struct walk *w, int64_t index,
                     struct progress *p, struct err *e)
{
    struct side *s = w->s;
    const struct corpus *c = w->c;
    bool mixed = model_layer_experts(model_config(s->model), index);
    struct mixture mix = { 0 };
    struct layer *l = NULL;
    int rc =
        model_load_layer(s->model, index, POINT_IN, POINT_OUT, NULL, &l, e);

    if (rc >= 0 && mixed)
        rc = mixture_open(&mix, s->model, index, (int64_t)c->start[c->count],
                          (int64_t)c->start[c->count], v->tmp, e);
    for (size_t i = 0, end; rc >= 0 && i < c->count; i = end) {
        end = batch_end(c, i);
        rc = run_batch(v, w, l, mixed ? &mix : NULL, i, end, e);
        for (size_t k = i; rc >= 0 && k < end; k++)
            progress_step(p, s->dir,
                          (c->start[k + 1] - c->start[k]) * v->row_bytes);
    }
    layer_release(l);
    if (rc >= 0 && mixed)
        rc = mixture_run(&mix, NULL, NULL, NULL, e);
    if (rc >= 0 && mixed)
        rc = add_experts(v, s, &mix, &w->state, c->start[c->count], e);
    mixture_close(&mix);
    return rc < 0 ? rc : 0;
}

static int run_side(struct eval *v, struct side *s, const struct corpus *c,
                    struct progress *p, struct err *e)
{
    struct walk w = { .s = s, .c = c };
    int rc;

    w.length = mem_zero(c->count, sizeof(*w.length), "sequences", e);
    rc = w.length ? enter(v, s, c, 1, e) : e->code;
    for (int64_t i = 0; rc >= 0 && i < eval_layers(v); i++) {
        rc = run_layer(v, &w, i, p, e);
        p->layers++;
    }
    state_release(&w.state);
    free(w.length);
    return rc < 0 ? rc : 0;
}

/* ---- by_layer: layers 0..i of the other, then the original's ----
 *
 * The original's states are layers + 1 copies of the corpus: copy 0 is the
 * original itself; copy i + 1 is taken from the other model behind layer i, and
 * runs through the original's later layers.  Together they are one corpus of
 * many sequences, so that each layer of the original is loaded once. */

/* *many = c repeated `copies` times (without ids). */
static int repeat(struct corpus *many, const struct corpus *c, size_t copies,
                  struct err *e)
{
    size_t n, total = c->start[c->count];

    *many = (struct corpus){ 0 };
    if (size_mul(copies, c->count, &n))
        return err_set(e, E_TEMP, "sequences: too many");
    many->start = mem_zero(n + 1, sizeof(*many->start), "sequences", e);
    if (!many->start)
        return e->code;
    for (size_t i = 0; i < n; i++)
        many->start[i + 1] = i / c->count * total + c->start[i % c->count + 1];
    return 0;
}

static int run_copies(struct eval *v, const struct corpus *c,
                      struct corpus *many, int64_t *length, struct progress *p,
                      struct err *e)
{
    size_t total = c->start[c->count];
    struct walk w = { .length = length };
    int rc = 0;

    for (int64_t i = 0; rc >= 0 && i < eval_layers(v); i++) {
        many->count = c->count * (size_t)(i + 1);
        w.s = &v->side[ORIGINAL];
        w.c = many;
        rc = run_layer(v, &w, i, p, e);
        w.s = &v->side[OTHER];
        w.c = c;
        if (rc >= 0)
            rc = run_layer(v, &w, i, p, e);
        if (rc >= 0)
            memcpy(hidden(v, &v->side[ORIGINAL], ((size_t)i + 1) * total),
                   v->side[OTHER].hidden.p, total * v->row_bytes);
        p->layers += SIDES;
    }
    state_release(&w.state);
    return rc;
}

static int run_by_layer(struct eval *v, const struct corpus *c,
                        struct progress *p, struct err *e)
{
    size_t copies = (size_t)eval_layers(v) + 1;
    int64_t *length = NULL;
    struct corpus many;
    int rc = repeat(&many, c, copies, e);

    if (rc >= 0) {
        length = mem_zero(copies * c->count, sizeof(*length), "sequences", e);
        rc = length ? 0 : e->code;
    }
    for (int i = 0; rc >= 0 && i < SIDES; i++)
        rc = enter(v, &v->side[i], c, i == ORIGINAL ? copies : 1, e);
    if (rc >= 0)
        rc = run_copies(v, c, &many, length, p, e);
    free(length);
    free(many.start);
    return rc;
}

/* ---- what is compared, block by block: logits, or normed states ---- */

/* Numbers of one token that are compared. */
static size_t row_width(const struct eval *v)
{
    return (size_t)(v->states ?
                        model_config(v->side[ORIGINAL].model)->hidden_size :
                        eval_vocab(v));
}

struct block {
    const float *rows[SIDES]; /* [rows of the block, width] */
    size_t width;
    struct comparison out;    /* [number of rows compared] */
    const size_t *row;        /* the rows of the block that are compared */
    const uint32_t *position; /* [number of rows compared], in their sequence */
    const int32_t *next;      /* next[r]: the token that row r predicts */
};

static void score_rows(void *ctx, size_t begin, size_t end)
{
    const struct block *b = ctx;

    for (size_t i = begin; i < end; i++) {
        size_t at = b->row[i] * b->width;
        struct score *s = &b->out.scores[i];

        if (!score_row(b->rows[ORIGINAL] + at, b->rows[OTHER] + at, b->width,
                       (size_t)b->next[b->row[i]], s))
            s->kl = NAN;
        s->position = b->position[i];
    }
}

static void compare_states(void *ctx, size_t begin, size_t end)
{
    const struct block *b = ctx;

    for (size_t i = begin; i < end; i++) {
        size_t at = b->row[i] * b->width;
        struct similarity *s = &b->out.states[i];

        if (!similarity_row(b->rows[ORIGINAL] + at, b->rows[OTHER] + at,
                            b->width, s))
            s->cosine = NAN;
    }
}

static int not_finite(const struct eval *v, const struct corpus *c,
                      size_t token, const float *original, struct err *e)
{
    size_t s = 0;
    int side = OTHER;

    for (size_t i = 0; i < row_width(v); i++)
        if (!isfinite(original[i]))
            side = ORIGINAL;
    while (c->start[s + 1] <= token)
        s++;
    return err_set(e, E_DATA,
                   "'%s': %s of sequence %zu, position %zu are not finite",
                   v->side[side].dir, v->states ? "hidden states" : "logits", s,
                   token - c->start[s]);
}

/* Put n rows of side s, from `row` on, through the final norm, and into the
 * memory of side `to`: as they are, or as logits.  Each row comes here once, so
 * normed ones may take its place on their way from a device. */
static int block_rows(struct eval *v, int s, size_t row, size_t n, int to,
                      struct err *e)
{
    struct side *from = &v->side[s];
    void *x = v->side[to].x, *there = hidden(v, from, row);
    bool device = model_on_device(from->model);
    int64_t width = (int64_t)row_width(v);
    size_t elements = n * (size_t)width;

    if (device && model_put(from->model, x, there, n * v->row_bytes, e) < 0)
        return e->code;
    if (head_norm(from->head, device ? x : there, (int64_t)n, x, e) < 0)
        return e->code;
    if (!v->states)
        return head_logits(from->head, x, (int64_t)n, 0, width,
                           v->side[to].rows, width, e);
    if (device && model_get(from->model, there, x,
                            elements * dtype_bits(v->dtype) / 8, e) < 0)
        return e->code;
    return to_f32(v->side[to].rows, device ? there : x, v->dtype, elements) ?
               0 :
               err_set(e, E_BUG, "hidden states are no floats");
}

/* Compare a block's rows of one variant: the other model, or by_layer copy
 * variant + 1. */
static int compare_variant(struct eval *v, const struct corpus *c, size_t first,
                           size_t n, int64_t variant, const struct block *b,
                           size_t rows, struct err *e)
{
    size_t total = c->start[c->count];
    size_t skip = (size_t)variant * eval_compared(v, c);
    struct block one = *b;
    int rc = v->by_layer ?
                 block_rows(v, ORIGINAL, ((size_t)variant + 1) * total + first,
                            n, OTHER, e) :
                 block_rows(v, OTHER, first, n, OTHER, e);

    if (rc < 0)
        return rc;
    if (v->states)
        one.out.states += skip;
    else
        one.out.scores += skip;
    threads_for(rows, 8, v->states ? compare_states : score_rows, &one);
    for (size_t i = 0; i < rows; i++)
        if (isnan(v->states ? one.out.states[i].cosine : one.out.scores[i].kl))
            return not_finite(v, c, first + b->row[i],
                              b->rows[ORIGINAL] + b->row[i] * b->width, e);
    return 0;
}

/* Compare tokens first..first+n-1; predictions except those of the last of each
 * sequence.  *sequence: the one of token `first`, updated; *out: where the
 * results go, advanced. */
static int compare_block(struct eval *v, const struct corpus *c, size_t first,
                         size_t n, size_t *sequence, struct comparison *out,
                         struct err *e)
{
    size_t row[BLOCK_ROWS_MAX], rows = 0;
    uint32_t position[BLOCK_ROWS_MAX];
    struct block b = { .rows = { v->side[ORIGINAL].rows, v->side[OTHER].rows },
                       .width = row_width(v),
                       .out = *out,
                       .row = row,
                       .position = position,
                       .next = c->ids + first + 1 };

    for (size_t i = 0; i < n; i++) {
        bool last = first + i + 1 == c->start[*sequence + 1];

        if (!last || v->states) {
            position[rows] = (uint32_t)(first + i - c->start[*sequence]);
            row[rows++] = i;
        }
        *sequence += last;
    }
    if (block_rows(v, ORIGINAL, first, n, ORIGINAL, e) < 0)
        return e->code;
    for (int64_t i = 0; i < eval_variants(v); i++)
        if (compare_variant(v, c, first, n, i, &b, rows, e) < 0)
            return e->code;
    if (v->states)
        out->states += rows;
    else
        out->scores += rows;
    return 0;
}

static int open_heads(struct eval *v, size_t block, struct err *e)
{
    for (int i = 0; i < SIDES; i++) {
        struct side *s = &v->side[i];
        bool wanted = i == ORIGINAL || !v->by_layer;

        if (wanted &&
            (v->states ? model_load_final_norm(s->model, &s->head, e) :
                         model_load_head(s->model, &s->head, e)) < 0)
            return e->code;
        if (model_alloc(s->model, &s->x, block * v->row_bytes, false, NULL, e) <
            0)
            return e->code;
        s->rows = mem_alloc(block * row_width(v) * sizeof(float),
                            v->states ? "hidden states" : "logits", e);
        if (!s->rows)
            return e->code;
    }
    return 0;
}

int eval_run(struct eval *v, const struct corpus *c,
             const struct comparison *out, struct progress *p, struct err *e)
{
    size_t total = c->start[c->count], n, sequence = 0;
    size_t block = BLOCK_MAX / row_width(v);
    struct comparison to = *out;

    block = block < BLOCK_ROWS_MIN ? BLOCK_ROWS_MIN : block;
    block = block > BLOCK_ROWS_MAX ? BLOCK_ROWS_MAX : block;
    block = block > total ? total : block;
    for (int i = 0; i < SIDES; i++)
        if (model_use_device(v->side[i].model, (int64_t)c->longest, e) < 0)
            return e->code;
    p->n_layers = SIDES * (uint64_t)eval_layers(v);
    if (v->by_layer && run_by_layer(v, c, p, e) < 0)
        return e->code;
    for (int i = 0; !v->by_layer && i < SIDES; i++)
        if (run_side(v, &v->side[i], c, p, e) < 0)
            return e->code;
    if (open_heads(v, block, e) < 0)
        return e->code;
    for (size_t t = 0; t < total; t += n) {
        n = total - t < block ? total - t : block;
        if (compare_block(v, c, t, n, &sequence, &to, e) < 0)
            return e->code;
    }
    return 0;
}

const struct remap_counts *eval_remapped(const struct eval *v)
{
    return model_remapped(v->side[OTHER].model);
}

void eval_close(struct eval *v)
{
    if (!v)
        return;
    for (int i = 0; i < SIDES; i++) {
        struct side *s = &v->side[i];

        head_release(s->head);
        if (s->model)
            model_free(s->model, s->x);
        model_close(s->model);
        region_release(&s->hidden);
        free(s->rows);
    }
    free(v);
}
