/* batch.c - see batch.h. */
#include "calib/batch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "common/math/lanes.h"

struct batch_reader {
    struct stream_reader *in;
    struct stream_writer *pass;
    struct model *m;
    bool tokens, inherited;
    bool reference;       /* reading the reference stream's frames */
    int64_t layer, count; /* count: of sequences so far */
    enum point at;
    struct batch_part part;
    int64_t seen; /* sequences of tokens, of all parts */
    bool pending; /* `next` has been read and is not in a batch yet */
    struct frame next;
};

bool batch_reader_is_tokens(const struct batch_reader *f)
{
    return f->tokens;
}

int64_t batch_reader_layer(const struct batch_reader *f)
{
    return f->layer;
}

enum point batch_reader_point(const struct batch_reader *f)
{
    return f->at;
}

/* ---- frames ---- */

/* Whether f->next, tokens, is of another part; else it has a number. */
static bool elsewhere(struct batch_reader *f)
{
    int64_t i = f->seen++;

    if (f->part.parts && i % f->part.parts != f->part.part)
        return true;
    if (!f->next.sequence)
        f->next.sequence = (uint64_t)i + 1;
    return false;
}

/* Whether frames of a role belong to states inside of a layer. */
static bool is_inside(enum role r)
{
    return r == ROLE_ACTIVATION || r == ROLE_ROUTING;
}

/* Read the next frame of tokens or hidden states into f->next, passing on
 * others.  1, or 0: end of input. */
static int fetch(struct batch_reader *f, struct err *e)
{
    int rc;

    if (f->pending)
        return 1;
    while ((rc = stream_next(f->in, &f->next, e)) > 0) {
        enum role r = f->next.role;

        if (f->pass && !f->inherited &&
            stream_inherit(f->pass, stream_head(f->in), e) < 0)
            return e->code;
        f->inherited = true;
        if (r == ROLE_TOKENS && elsewhere(f))
            continue;
        if (r == ROLE_TOKENS || r == ROLE_HIDDEN ||
            (is_inside(r) && f->at > POINT_IN)) {
            f->pending = true;
            return 1;
        }
        if (f->pass && stream_write(f->pass, &f->next, e) < 0)
            return e->code;
    }
    return rc;
}

/* Whether t is the name of point p in frames of states. */
static bool is_point(enum point p, const struct name_text *t)
{
    const char *name = p == POINT_IN ? "" : point_name(p);

    return strlen(name) == t->len && !strncmp(name, t->at, t->len);
}

/* Parse "model.layers.12", "model.layers.12.mlp_in"; of the reference, which may
 * have passed the layer, "model.layers.12.hidden.original".  False: another
 * name. */
static bool parse_name(const char *name, bool reference, int64_t *layer,
                       enum point *at)
{
    struct tensor_name n;

    tensor_name_parse(&n, name);
    if (n.layer < 0 || n.expert >= 0 ||
        n.companion != (reference ? COMPANION_ORIGINAL : COMPANION_NONE))
        return false;
    *layer = n.layer;
    for (*at = POINT_IN; *at < POINT_OUT && !is_point(*at, &n.part); ++*at)
        ;
    return *at < POINT_OUT || is_point(POINT_OUT, &n.part);
}

static int check_hidden(const struct batch_reader *f, const struct frame *x,
                        struct err *e)
{
    int64_t layer, width = model_row(model_config(f->m));
    enum point at;
    char shape[128];

    if (!parse_name(x->name, f->reference, &layer, &at) || at != f->at)
        return err_set(e, E_DATA, "'%s' is no name of hidden states%s%s",
                       x->name, f->at ? " at " : "",
                       f->at ? point_name(f->at) : "");
    if (layer != f->layer)
        return err_set(e, E_DATA, "'%s': want layer %lld", x->name,
                       (long long)f->layer);
    if ((x->dtype == DT_BF16 || x->dtype == DT_F32) && x->ndim == 2 &&
        x->dims[0] && x->dims[1] == (uint64_t)width && x->dims[0] <= INT32_MAX)
        return 0;
    return err_set(e, E_DATA,
                   "'%s' is %s %s; of this model it is BF16 or F32 [n,%lld]",
                   x->name, dtype_name(x->dtype),
                   frame_shape(x, shape, sizeof(shape)), (long long)width);
}

/* ---- one sequence ---- */

static int64_t frame_rows(const struct frame *x)
{
    return (int64_t)x->dims[0];
}

int check_finite(const struct model *m, const void *rows, int64_t n,
                 int64_t width, const char *what, uint64_t sequence,
                 struct err *e)
{
    enum dtype t = model_dtype(m);
    size_t size = dtype_bits(t) / 8;

    if (lanes_all_finite(rows, t, (uint64_t)(n * width)))
        return 0;
    for (int64_t i = 0; i < n; i++)
        if (!lanes_all_finite((const char *)rows + (size_t)(i * width) * size,
                              t, (uint64_t)width))
            return err_set(e, E_DATA,
                           "'%s': sequence %llu: not finite at token %lld",
                           what, (unsigned long long)sequence, (long long)i);
    return 0;
}

/* Convert the rows of a frame to the model's dtype. */
static int copy_rows(const struct batch_reader *f, const struct frame *x,
                     void *to, struct err *e)
{
    enum dtype t = model_dtype(f->m);
    size_t width = (size_t)x->dims[1], n = (size_t)x->dims[0];

    if (x->dtype == t) {
        memcpy(to, x->data, x->len);
    } else if (t == DT_F32) {
        if (!to_f32(to, x->data, x->dtype, n * width))
            return err_set(e, E_BUG, "'%s' is no float", x->name);
    } else if (!from_f32(to, t, x->data, n * width)) {
        return err_set(e, E_BUG, "'%s' is no float", x->name);
    }
    return check_finite(f->m, to, (int64_t)n, (int64_t)width, x->name,
                        x->sequence, e);
}

static int check_first(const struct batch_reader *f, struct err *e)
{
    const struct frame *x = &f->next;

    if (x->role != (f->tokens ? ROLE_TOKENS : ROLE_HIDDEN))
        return err_set(e, E_DATA, "a %s frame '%s' among %s",
                       role_name(x->role), x->name,
                       f->tokens ? "tokens" : "hidden states");
    if (!f->tokens)
        return check_hidden(f, x, e);
    if (x->dtype != DT_I32 || x->ndim != 1 || !x->dims[0] ||
        x->dims[0] > INT32_MAX)
        return err_set(e, E_DATA, "tokens '%s' are not I32 [n]", x->name);
    return 0;
}

/* Whether f->next is the first frame of the reference stream. */
static bool reference_begins(const struct batch_reader *f)
{
    enum point at;
    int64_t layer;

    return !f->tokens && !f->reference && f->count &&
           f->next.role == ROLE_HIDDEN &&
           parse_name(f->next.name, true, &layer, &at);
}

/* Add f->next to the batch.  1; or 0: the batch is full, or the frame is the
 * reference stream's, or an activation. */
static int take(struct batch_reader *f, struct batch *b, int64_t *rows,
                struct err *e)
{
    int64_t n;

    if (reference_begins(f) || (is_inside(f->next.role) && f->count))
        return 0;
    if (check_first(f, e) < 0)
        return e->code;
    n = frame_rows(&f->next);
    if (b->n && (*rows + n > BATCH_ROWS || b->n == BATCH_SEQUENCES))
        return 0;
    if (!b->n) { /* reserve for a full batch, or for this sequence */
        int64_t room = n > BATCH_ROWS ? n : BATCH_ROWS;

        b->s.host = true;
        if (f->tokens ?
                buffer_reserve(&b->tokens, room, 1, sizeof(int32_t), "tokens",
                               e) < 0 :
                state_reserve(&b->s, f->m, room, BATCH_SEQUENCES, e) < 0)
            return e->code;
    }
    b->length[b->n] = n;
    b->sequence[b->n] =
        f->next.sequence ? f->next.sequence : (uint64_t)f->count + 1;
    if (!f->tokens && copy_rows(f, &f->next, state_x(&b->s, *rows), e) < 0)
        return e->code;
    if (f->tokens && model_check_tokens(f->m, f->next.data, n, e) < 0)
        return err_prefix(e, "sequence %llu",
                          (unsigned long long)b->sequence[b->n]);
    if (f->tokens)
        memcpy((int32_t *)b->tokens.p + *rows, f->next.data, f->next.len);
    f->pending = false;
    f->count++;
    b->n++;
    *rows += n;
    return 1;
}

/* As state_prepare() does. */
static int check_lengths(const struct batch_reader *f, const struct batch *b,
                         struct err *e)
{
    for (int64_t i = 0; i < b->n; i++)
        if (model_check_length(f->m, b->length[i], e) < 0)
            return e->code;
    return 0;
}

int batch_reader_next(struct batch_reader *f, struct batch *b, struct err *e)
{
    int64_t rows = 0;
    int rc;

    b->n = 0;
    while ((rc = fetch(f, e)) > 0 && (rc = take(f, b, &rows, e)) > 0)
        ;
    if (rc < 0)
        return rc;
    if (!b->n)
        return 0;
    b->last = !f->pending;
    b->rows = rows;
    if (f->tokens)
        return check_lengths(f, b, e) < 0 ? e->code : 1;
    rc = state_prepare(&b->s, f->m, POINT_IN, b->length, b->n, e);
    return rc < 0 ? rc : 1;
}

int batch_reader_reference(struct batch_reader *f)
{
    int64_t layer;

    /* batch_reader_next() has left the reference's first frame */
    if (f->pending && f->next.role == ROLE_HIDDEN)
        f->reference = parse_name(f->next.name, true, &layer, &f->at);
    return f->reference;
}

int batch_reader_inside(struct batch_reader *f, const struct frame *want,
                        const void **data, struct err *e)
{
    const struct frame *x = &f->next;
    char shape[2][64];
    int rc = fetch(f, e);

    if (rc < 0)
        return rc;
    if (!rc || x->role != want->role || strcmp(x->name, want->name) != 0 ||
        x->sequence != want->sequence || x->dtype != want->dtype ||
        strcmp(frame_shape(x, shape[0], sizeof(shape[0])),
               frame_shape(want, shape[1], sizeof(shape[1]))) != 0)
        return err_set(e, E_DATA, "'%s': want the %s of sequence %llu, %s %s",
                       want->name, role_name(want->role),
                       (unsigned long long)want->sequence,
                       dtype_name(want->dtype),
                       frame_shape(want, shape[1], sizeof(shape[1])));
    *data = x->data;
    f->pending = false;
    return 0;
}

/* ---- opening ---- */

static int look_at_tokens(struct batch_reader *f, int64_t layer, struct err *e)
{
    if (layer > 0)
        return err_set(e, E_DATA,
                       "tokens enter layer 0, not layer %lld: want its hidden "
                       "states",
                       (long long)layer);
    f->tokens = true;
    f->layer = 0;
    return model_load_embedding(f->m, e);
}

/* Take the layer from the first hidden frame, and check it. */
static int look_at_state(struct batch_reader *f, int64_t layer, struct err *e)
{
    const struct model_config *c = model_config(f->m);

    if (f->next.role != ROLE_HIDDEN ||
        !parse_name(f->next.name, false, &f->layer, &f->at))
        return err_set(e, E_DATA,
                       "the first frame is %s '%s': want tokens, or hidden "
                       "states of a layer",
                       role_name(f->next.role), f->next.name);
    if (layer >= 0)
        f->layer = layer;
    if (f->layer >= c->n_layers)
        return err_set(e, E_DATA, "'%s': the model has %lld layers",
                       f->next.name, (long long)c->n_layers);
    return check_hidden(f, &f->next, e);
}

int batch_reader_open(struct batch_reader **out, struct stream_reader *in,
                      struct model *m, int64_t layer,
                      const struct batch_part *part, struct stream_writer *pass,
                      struct err *e)
{
    struct batch_reader *f = mem_zero(1, sizeof(*f), "input", e);
    int rc;

    if (!f)
        return e->code;
    f->in = in;
    f->m = m;
    f->pass = pass;
    if (part)
        f->part = *part;
    rc = fetch(f, e);
    if (!rc)
        rc = f->seen ? err_set(e, E_USAGE,
                               "--parts: %" PRId64 " of %" PRId64 " sequences",
                               f->part.parts, f->seen) :
                       err_set(e, E_DATA, "the input has no sequences");
    if (rc > 0)
        rc = f->next.role == ROLE_TOKENS ? look_at_tokens(f, layer, e) :
                                           look_at_state(f, layer, e);
    if (rc < 0) {
        batch_reader_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

void batch_reader_close(struct batch_reader *f)
{
    free(f);
}
