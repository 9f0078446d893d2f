/* gradient_weights.c - see gradient_weights.h. */
#include "calib/gradient_weights.h"

#include <stdlib.h>

#include "calib/emit.h"
#include "common/math/lanes.h"

static int64_t linears(const struct gradient_weights *w)
{
    return model_linear_common(model_config(w->s->m), w->layer);
}

static size_t bytes(const struct gradient_weights *w)
{
    return (size_t)(linears(w) * w->rows) * sizeof(float);
}

int gradient_weights_open(struct gradient_weights *w, struct err *e)
{
    void *p;

    if (model_alloc(w->s->m, &p, bytes(w), false, NULL, e) < 0)
        return e->code;
    w->squares = (struct token_squares){ p, w->rows };
    return 0;
}

void gradient_weights_close(struct gradient_weights *w)
{
    if (w->s)
        model_free(w->s->m, w->squares.p);
    w->squares = (struct token_squares){ 0 };
}

/* The linears of the layer that read point p: their number. */
static int64_t readers(const struct gradient_weights *w, enum point p,
                       int64_t *of)
{
    struct linear l;
    int64_t n = 0;

    for (int64_t i = 0; i < linears(w); i++) {
        model_linear(model_config(w->s->m), w->layer, i, &l);
        if (l.input == point_input(p))
            of[n++] = i;
    }
    return n;
}

/* The frames of point p; host [linears, rows]; room [rows, linears]. */
static int write_point(const struct gradient_weights *w, enum point p,
                       const float *host, float *room,
                       struct stream_writer *out, struct err *e)
{
    char modules[EMIT_MODULES];
    struct frame f = {
        .role = ROLE_ACTIVATION, .dtype = DT_F32, .ndim = 2, .modules = modules
    };
    int64_t of[PARTS], n = readers(w, p, of), row = 0;

    emit_name(w->layer, p, f.name);
    emit_modules(model_config(w->s->m), w->layer, point_input(p), -1, modules);
    for (int64_t i = w->first; n && i < w->first + w->n; i++) {
        const struct sequence *s = &w->s->sequence[i];

        for (int64_t k = 0; k < n * s->length; k++)
            room[k] = host[of[k % n] * w->rows + row + k / n];
        row += s->length;
        f.sequence = s->number;
        f.last = i == w->s->n_sequences - 1;
        f.dims[0] = f.samples = (uint64_t)s->length;
        f.dims[1] = (uint64_t)n;
        f.data = room;
        f.len = (size_t)(n * s->length) * sizeof(*room);
        if (stream_write(out, &f, e) < 0)
            return e->code;
    }
    return 0;
}

/* E_DATA: an element of host [linears, rows] is not finite. */
static int check(const struct gradient_weights *w, const float *host,
                 struct err *e)
{
    struct linear l;

    for (int64_t i = 0; i < linears(w); i++)
        if (!lanes_finite(host + i * w->rows, (size_t)w->rows)) {
            model_linear(model_config(w->s->m), w->layer, i, &l);
            return err_set(e, E_DATA, "'%s': a gradient is not finite",
                           l.module);
        }
    return 0;
}

int gradient_weights_write(const struct gradient_weights *w,
                           struct stream_writer *out, struct err *e)
{
    float *host = mem_alloc(2 * bytes(w), "weights of tokens", e);
    int rc =
        host ? model_get(w->s->m, host, w->squares.p, bytes(w), e) : e->code;

    if (rc >= 0)
        rc = check(w, host, e);
    for (enum point p = POINT_ATTN_IN; p < POINT_OUT && rc >= 0; p++)
        rc = write_point(w, p, host, host + linears(w) * w->rows, out, e);
    free(host);
    return rc;
}
