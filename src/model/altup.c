/* altup.c - see altup.h: a layer. */
#include "model/altup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/threads.h"
#include "model/scratch.h"

struct altup_weights {
    float *router;           /* [n, H]: R norm_r / H */
    float *predict;          /* P [n n, n] */
    float *correct;          /* C [n, n] */
    float *scale;            /* s [H], or NULL: 1 */
    float *laurel_norm;      /* norm_l [H] */
    float *input_norm;       /* norm_u [H] */
    struct loaded laurel[2]; /* A, B */
    struct loaded input[2];  /* G, U */
};

/* ---- loading ---- */

static bool wanted(const struct layer *l, enum point leads)
{
    return leads > l->from && leads <= l->to;
}

/* R, with the norm's weights in it. */
static int load_router(struct layer *l, struct altup_weights *w, struct err *e)
{
    const struct model_config *c = &l->m->config;
    int64_t h = c->hidden_size;
    float *norm = NULL;

    if (layer_vector(l, "altup.modality_router.weight", c->altup.n * h,
                     &w->router, e) < 0 ||
        layer_vector(l, "altup.router_norm.weight", h, &norm, e) < 0)
        return e->code;
    for (int64_t i = 0; i < c->altup.n * h; i++)
        w->router[i] *= norm[i % h] / (float)h;
    free(norm);
    return model_place(l->m, (void **)&w->router,
                       (size_t)(c->altup.n * h) * sizeof(float), e);
}

static int load_laurel(struct layer *l, struct altup_weights *w, struct err *e)
{
    int64_t h = l->m->config.hidden_size, rank = l->m->config.altup.rank;

    if (layer_vector_there(l, "laurel.post_laurel_norm.weight", h,
                           &w->laurel_norm, e) < 0 ||
        layer_linear(l, "laurel.linear_left", rank, h, &w->laurel[0], e) < 0)
        return e->code;
    return layer_linear(l, "laurel.linear_right", h, rank, &w->laurel[1], e);
}

/* What corrects the streams, and what the layer's own input meets. */
static int load_end(struct layer *l, struct altup_weights *w, struct err *e)
{
    const struct altup *a = &l->m->config.altup;
    int64_t h = l->m->config.hidden_size;

    if (layer_vector_there(l, "altup.correction_coefs.weight", a->n * a->n,
                           &w->correct, e) < 0 ||
        (a->scale_corrected &&
         layer_vector_there(l, "altup.correct_output_scale", h, &w->scale, e) <
             0) ||
        layer_vector_there(l, "post_per_layer_input_norm.weight", h,
                           &w->input_norm, e) < 0 ||
        layer_linear(l, "per_layer_input_gate", a->inputs, h, &w->input[0], e) <
            0)
        return e->code;
    return layer_linear(l, "per_layer_projection", h, a->inputs, &w->input[1],
                        e);
}

int altup_load(struct layer *l, struct err *e)
{
    const struct altup *a = &l->m->config.altup;
    struct altup_weights *w = mem_zero(1, sizeof(*w), "streams", e);

    l->altup = w;
    if (!w || load_router(l, w, e) < 0 ||
        layer_vector_there(l, "altup.prediction_coefs.weight",
                           a->n * a->n * a->n, &w->predict, e) < 0)
        return e->code;
    if (wanted(l, POINT_MLP_IN) && load_laurel(l, w, e) < 0)
        return e->code;
    return wanted(l, POINT_OUT) ? load_end(l, w, e) : 0;
}

void altup_release(const struct model *m, struct altup_weights *w)
{
    if (!w)
        return;
    model_free(m, w->router);
    model_free(m, w->predict);
    model_free(m, w->correct);
    model_free(m, w->scale);
    model_free(m, w->laurel_norm);
    model_free(m, w->input_norm);
    for (int i = 0; i < 2; i++) {
        loaded_release(&w->laurel[i]);
        loaded_release(&w->input[i]);
    }
    free(w);
}

/* ---- rows ---- */

struct rows_job {
    altup_row_fn *fn;
    const void *ctx;
    size_t work; /* bytes */
    struct threads_error error;
};

static void run_rows(void *ctx, size_t begin, size_t end)
{
    struct rows_job *j = ctx;
    struct err e;
    float *work = scratch_thread(j->work, &e);

    if (!work)
        threads_error_add(&j->error, begin, &e);
    for (size_t r = begin; work && r < end; r++)
        j->fn(j->ctx, (int64_t)r, work);
}

int altup_rows(int64_t rows, int64_t work, altup_row_fn *fn, const void *ctx,
               struct err *e)
{
    struct rows_job j = { .fn = fn,
                          .ctx = ctx,
                          .work = (size_t)work * sizeof(float) };

    threads_error_init(&j.error);
    threads_for((size_t)rows, 8, run_rows, &j);
    return threads_error_take(&j.error, e);
}

/* A pass over the rows of a batch, on the host. */
struct pass {
    const struct model *m;
    const struct forward_streams *a;
};

/* fn gets work memory for n + 2 vectors [H]. */
static int run_pass(const struct model *m, const struct forward_streams *a,
                    altup_row_fn *fn, struct err *e)
{
    const struct pass p = { m, a };

    return altup_rows(a->rows, a->width * (a->n + 2), fn, &p, e);
}

/* Elements to f32 and back; every dtype of a model is a float's. */
static void widen(const struct model *m, const void *from, int64_t n, float *to)
{
    (void)!to_f32(to, from, m->dtype, (size_t)n);
}

static void narrow(const struct model *m, const float *from, int64_t n,
                   void *to)
{
    (void)!from_f32(to, m->dtype, from, (size_t)n);
}

/* Address of stream i of row r; -1: of the one at hand. */
static void *stream(const struct pass *p, int64_t r, int64_t i)
{
    return state_at(p->a->x, p->a->dtype, r * p->a->ld + (i + 1) * p->a->width);
}

/* Address of row r of rows of H elements. */
static void *row_of(const struct pass *p, const void *rows, int64_t r)
{
    return state_at((void *)(uintptr_t)rows, p->a->dtype, r * p->a->width);
}

/* y[rows] = W x, W [rows, cols]. */
static void apply(const float *w, const float *x, int64_t rows, int64_t cols,
                  float *y)
{
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;

        for (int64_t k = 0; k < cols; k++)
            sum += (double)w[i * cols + k] * x[k];
        y[i] = (float)sum;
    }
}

/* y[n] = m(x). */
static void modalities(const struct forward_streams *a, const float *x,
                       float *y)
{
    int64_t h = a->width;
    double squares = 0, scale;

    for (int64_t k = 0; k < h; k++)
        squares += (double)x[k] * x[k];
    scale = 1 / sqrt(squares / (double)h + a->eps);
    apply(a->router, x, a->n, h, y);
    for (int64_t i = 0; i < a->n; i++)
        y[i] = (float)tanh(scale * y[i]);
}

/* Load the streams of row r into h [n, H]; q[n n]: P m(h[a]). */
static void load_streams(const struct pass *p, int64_t r, float *h,
                         float q[ALTUP_STREAMS * ALTUP_STREAMS])
{
    int64_t n = p->a->n, width = p->a->width;
    float y[ALTUP_STREAMS];

    for (int64_t i = 0; i < n; i++)
        widen(p->m, stream(p, r, i), width, h + i * width);
    modalities(p->a, h + p->a->active * width, y);
    apply(p->a->by, y, n * n, n, q);
}

/* to[H] = p[j] = h[j] + sum q[j, i] h[i]. */
static void predict(const struct forward_streams *a, const float *h,
                    const float *q, int64_t j, float *to)
{
    int64_t n = a->n, width = a->width;

    memset(to, 0, (size_t)width * sizeof(*to));
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < width; k++)
            to[k] += q[j * n + i] * h[i * width + k];
    for (int64_t k = 0; k < width; k++)
        to[k] += h[j * width + k];
}

static void predict_row(const void *ctx, int64_t r, float *work)
{
    const struct pass *p = ctx;
    const struct forward_streams *a = p->a;
    float q[ALTUP_STREAMS * ALTUP_STREAMS], *to = work + a->n * a->width;

    load_streams(p, r, work, q);
    for (int64_t j = 0; j < a->n; j++) {
        bool active = j == a->active;

        if (a->out && !active)
            continue;
        predict(a, work, q, j, to);
        if (!a->out)
            narrow(p->m, to, a->width, stream(p, r, j));
        if (active)
            narrow(p->m, to, a->width,
                   a->out ? row_of(p, a->out, r) : stream(p, r, -1));
    }
}

int streams_predict(const struct model *m, const struct forward_streams *a,
                    struct err *e)
{
    return run_pass(m, a, predict_row, e);
}

/* The batch, without what an operation reads beside it. */
static struct forward_streams streams_of(const struct layer *l,
                                         const struct state *s)
{
    const struct model_config *c = &l->m->config;

    return (struct forward_streams){ .dtype = l->m->dtype,
                                     .rows = s->rows,
                                     .width = c->hidden_size,
                                     .ld = s->row,
                                     .n = c->altup.n,
                                     .active = c->altup.active,
                                     .eps = c->rms_eps,
                                     .x = s->x,
                                     .router = l->altup->router };
}

int altup_predict(const struct layer *l, const struct state *s, void *out,
                  struct err *e)
{
    struct forward_streams a = streams_of(l, s);

    a.by = l->altup->predict;
    a.out = out;
    return l->m->on ? l->m->on->predict(l->m->context, &a, e) :
                      streams_predict(l->m, &a, e);
}

/* ---- LAuReL ---- */

/* x = (x + a + b) / sqrt(2): a = norm_in(p[a]), b what the low-rank path adds. */
static void join_row(const void *ctx, int64_t r, float *work)
{
    const struct pass *p = ctx;
    int64_t h = p->a->width;
    float *a = work + h, *b = work + 2 * h;

    widen(p->m, stream(p, r, -1), h, work);
    widen(p->m, row_of(p, p->a->a, r), h, a);
    widen(p->m, row_of(p, p->a->b, r), h, b);
    for (int64_t k = 0; k < h; k++)
        work[k] = (work[k] + a[k] + b[k]) * (float)sqrt(0.5);
    narrow(p->m, work, h, stream(p, r, -1));
}

int streams_join(const struct model *m, const struct forward_streams *a,
                 struct err *e)
{
    return run_pass(m, a, join_row, e);
}

int altup_laurel(struct layer *l, const struct state *s, struct err *e)
{
    struct model *m = l->m;
    const struct model_config *c = &m->config;
    struct norm j = { .rows = s->rows,
                      .n = c->hidden_size,
                      .w = l->norm1,
                      .eps = (float)c->rms_eps };
    struct forward_streams a = streams_of(l, s);

    if (model_reserve(m, &m->side[0], s->rows, j.n, m->size, "streams", e) < 0)
        return e->code;
    j.x = state_at(s->x, m->dtype, model_row_stream(c, c->altup.active));
    j.ld = s->row;
    j.out = m->side[0].p;
    if (model_norm_rows(m, &j, e) < 0 ||
        product_into(&m->side[1], m, &l->altup->laurel[0], j.out, s->rows,
                     "streams", e) < 0 ||
        product_into(&m->latent, m, &l->altup->laurel[1], m->side[1].p, s->rows,
                     "streams", e) < 0 ||
        model_norm(m, m->latent.p, l->altup->laurel_norm, s->rows, m->latent.p,
                   e) < 0)
        return e->code;
    a.a = m->side[0].p;
    a.b = m->latent.p;
    return m->on ? m->on->join(m->context, &a, e) : streams_join(m, &a, e);
}

/* ---- the end of a layer ---- */

/* h[j] = p[j] + (1 + (C m(x))[j]) (x - p[a]); out = s h[a]. */
static void correct_row(const void *ctx, int64_t r, float *work)
{
    const struct pass *p = ctx;
    const struct forward_streams *a = p->a;
    int64_t h = a->width;
    float y[ALTUP_STREAMS], q[ALTUP_STREAMS];
    float *news = work + h, *to = work + 2 * h;

    widen(p->m, stream(p, r, -1), h, work);
    modalities(a, work, y);
    apply(a->by, y, a->n, a->n, q);
    widen(p->m, stream(p, r, a->active), h, news);
    for (int64_t k = 0; k < h; k++)
        news[k] = work[k] - news[k];
    for (int64_t j = 0; j < a->n; j++) {
        widen(p->m, stream(p, r, j), h, to);
        for (int64_t k = 0; k < h; k++)
            to[k] += (1 + q[j]) * news[k];
        narrow(p->m, to, h, stream(p, r, j));
        if (j != a->active)
            continue;
        widen(p->m, stream(p, r, j), h, to); /* as it was rounded */
        for (int64_t k = 0; a->scale && k < h; k++)
            to[k] *= a->scale[k];
        narrow(p->m, to, h, row_of(p, a->out, r));
    }
}

int streams_correct(const struct model *m, const struct forward_streams *a,
                    struct err *e)
{
    return run_pass(m, a, correct_row, e);
}

/* h[1 ..] += y, rows of H elements. */
static int add_to_streams(const struct layer *l, const struct state *s,
                          const void *y, struct err *e)
{
    const struct model *m = l->m;
    const struct model_config *c = &m->config;

    for (int64_t i = 1; i < c->altup.n; i++)
        if (model_add_times(
                m,
                &(struct forward_add_times){
                    .dtype = m->dtype,
                    .factor = 1,
                    .rows = s->rows,
                    .n = c->hidden_size,
                    .ld = s->row,
                    .x = state_at(s->x, m->dtype, model_row_stream(c, i)),
                    .y = y },
                e) < 0)
            return e->code;
    return 0;
}

int altup_correct(struct layer *l, const struct state *s, struct err *e)
{
    struct model *m = l->m;
    const struct model_config *c = &m->config;
    const struct altup_weights *w = l->altup;
    struct forward_streams a = streams_of(l, s);
    struct gate_pair g = { .ldg = c->altup.inputs,
                           .ldu = s->row,
                           .rows = s->rows,
                           .n = c->altup.inputs };

    if (model_reserve(m, &m->side[0], s->rows, c->hidden_size, m->size,
                      "streams", e) < 0)
        return e->code;
    a.by = w->correct;
    a.scale = w->scale;
    a.out = m->side[0].p;
    if ((m->on ? m->on->correct(m->context, &a, e) :
                 streams_correct(m, &a, e)) < 0 ||
        product_into(&m->side[1], m, &w->input[0], a.out, s->rows, "streams",
                     e) < 0)
        return e->code;
    g.g = g.out = m->side[1].p;
    g.u = state_at(s->x, m->dtype, model_row_input(c, l->index));
    if (gate_pair(m, &g, e) < 0 ||
        product_into(&m->side[0], m, &w->input[1], g.out, s->rows, "streams",
                     e) < 0 ||
        model_norm(m, m->side[0].p, w->input_norm, s->rows, m->side[0].p, e) <
            0)
        return e->code;
    return add_to_streams(l, s, m->side[0].p, e);
}

/* ---- sparse gates ---- */

struct sparse {
    const struct model *m;
    double cutoff;
    void *g;
    int64_t n;
};

static void sparse_row(const void *ctx, int64_t r, float *g)
{
    const struct sparse *j = ctx;
    void *row = state_at(j->g, j->m->dtype, r * j->n);
    double sum = 0, squares = 0, mean, n = (double)j->n;
    float least;

    widen(j->m, row, j->n, g);
    for (int64_t i = 0; i < j->n; i++) {
        sum += g[i];
        squares += (double)g[i] * g[i];
    }
    mean = sum / n;
    least =
        (float)(mean + j->cutoff * sqrt(fmax(squares / n - mean * mean, 0)));
    for (int64_t i = 0; i < j->n; i++)
        g[i] = g[i] > least ? g[i] - least : 0;
    narrow(j->m, g, j->n, row);
}

int altup_sparsify(const struct model *m, double cutoff, void *g, int64_t rows,
                   int64_t n, struct err *e)
{
    struct sparse j = { m, cutoff, g, n };

    return m->on ?
               m->on->sparsify(m->context, m->dtype, cutoff, g, rows, n, e) :
               altup_rows(rows, n, sparse_row, &j, e);
}
