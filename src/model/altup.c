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
    return 0;
}

static int load_laurel(struct layer *l, struct altup_weights *w, struct err *e)
{
    int64_t h = l->m->config.hidden_size, rank = l->m->config.altup.rank;

    if (layer_vector(l, "laurel.post_laurel_norm.weight", h, &w->laurel_norm,
                     e) < 0 ||
        layer_linear(l, "laurel.linear_left", rank, h, &w->laurel[0], e) < 0)
        return e->code;
    return layer_linear(l, "laurel.linear_right", h, rank, &w->laurel[1], e);
}

/* What corrects the streams, and what the layer's own input meets. */
static int load_end(struct layer *l, struct altup_weights *w, struct err *e)
{
    const struct altup *a = &l->m->config.altup;
    int64_t h = l->m->config.hidden_size;

    if (layer_vector(l, "altup.correction_coefs.weight", a->n * a->n,
                     &w->correct, e) < 0 ||
        (a->scale_corrected &&
         layer_vector(l, "altup.correct_output_scale", h, &w->scale, e) < 0) ||
        layer_vector(l, "post_per_layer_input_norm.weight", h, &w->input_norm,
                     e) < 0 ||
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
        layer_vector(l, "altup.prediction_coefs.weight", a->n * a->n * a->n,
                     &w->predict, e) < 0)
        return e->code;
    if (wanted(l, POINT_MLP_IN) && load_laurel(l, w, e) < 0)
        return e->code;
    return wanted(l, POINT_OUT) ? load_end(l, w, e) : 0;
}

void altup_release(struct altup_weights *w)
{
    if (!w)
        return;
    free(w->router);
    free(w->predict);
    free(w->correct);
    free(w->scale);
    free(w->laurel_norm);
    free(w->input_norm);
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

/* A pass over the rows of a batch. */
struct pass {
    const struct layer *l;
    const struct state *s;
    char *out;         /* [rows, H], elements, or NULL */
    const char *a, *b; /* the same, of products */
};

/* fn gets work memory for n + 2 vectors [H]. */
static int run_pass(const struct pass *p, altup_row_fn *fn, struct err *e)
{
    const struct model_config *c = &p->l->m->config;

    return altup_rows(p->s->rows, c->hidden_size * (c->altup.n + 2), fn, p, e);
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

/* Address of stream i of row r. */
static void *stream(const struct pass *p, int64_t r, int64_t i)
{
    const struct model *m = p->l->m;

    return state_at(state_x(p->s, r), m->dtype,
                    model_row_stream(&m->config, i));
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
static void modalities(const struct layer *l, const float *x, float *y)
{
    const struct model_config *c = &l->m->config;
    int64_t h = c->hidden_size;
    double squares = 0, scale;

    for (int64_t k = 0; k < h; k++)
        squares += (double)x[k] * x[k];
    scale = 1 / sqrt(squares / (double)h + c->rms_eps);
    apply(l->altup->router, x, c->altup.n, h, y);
    for (int64_t i = 0; i < c->altup.n; i++)
        y[i] = (float)tanh(scale * y[i]);
}

/* Load the streams of row r into h [n, H]; q[n n]: P m(h[a]). */
static void load_streams(const struct pass *p, int64_t r, float *h,
                         float q[ALTUP_STREAMS * ALTUP_STREAMS])
{
    const struct altup *a = &p->l->m->config.altup;
    int64_t n = a->n, width = p->l->m->config.hidden_size;
    float y[ALTUP_STREAMS];

    for (int64_t i = 0; i < n; i++)
        widen(p->l->m, stream(p, r, i), width, h + i * width);
    modalities(p->l, h + a->active * width, y);
    apply(p->l->altup->predict, y, n * n, n, q);
}

/* to[H] = p[j] = h[j] + sum q[j, i] h[i]. */
static void predict(const struct layer *l, const float *h, const float *q,
                    int64_t j, float *to)
{
    int64_t n = l->m->config.altup.n, width = l->m->config.hidden_size;

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
    const struct model *m = p->l->m;
    int64_t h = m->config.hidden_size, n = m->config.altup.n;
    float q[ALTUP_STREAMS * ALTUP_STREAMS], *to = work + n * h;

    load_streams(p, r, work, q);
    for (int64_t j = 0; j < n; j++) {
        bool active = j == m->config.altup.active;

        if (p->out && !active)
            continue;
        predict(p->l, work, q, j, to);
        if (!p->out)
            narrow(m, to, h, stream(p, r, j));
        if (active)
            narrow(m, to, h,
                   p->out ? p->out + (size_t)(r * h) * m->size :
                            state_x(p->s, r));
    }
}

int altup_predict(const struct layer *l, const struct state *s, void *out,
                  struct err *e)
{
    struct pass p = { .l = l, .s = s, .out = out };

    return run_pass(&p, predict_row, e);
}

/* ---- LAuReL ---- */

/* x = (x + a + b) / sqrt(2): a = norm_in(p[a]), b what the low-rank path adds. */
static void laurel_row(const void *ctx, int64_t r, float *work)
{
    const struct pass *p = ctx;
    const struct model *m = p->l->m;
    int64_t h = m->config.hidden_size;
    size_t at = (size_t)(r * h) * m->size;
    float *a = work + h, *b = work + 2 * h;

    widen(m, state_x(p->s, r), h, work);
    widen(m, p->a + at, h, a);
    widen(m, p->b + at, h, b);
    for (int64_t k = 0; k < h; k++)
        work[k] = (work[k] + a[k] + b[k]) * (float)sqrt(0.5);
    narrow(m, work, h, state_x(p->s, r));
}

int altup_laurel(struct layer *l, const struct state *s, struct err *e)
{
    struct model *m = l->m;
    const struct model_config *c = &m->config;
    struct norm j = { .rows = s->rows,
                      .n = c->hidden_size,
                      .w = l->norm1,
                      .eps = (float)c->rms_eps };
    struct pass p = { .l = l, .s = s };

    if (buffer_reserve(&m->side[0], s->rows, j.n, m->size, "streams", e) < 0)
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
    p.a = m->side[0].p;
    p.b = m->latent.p;
    return run_pass(&p, laurel_row, e);
}

/* ---- the end of a layer ---- */

/* h[j] = p[j] + (1 + (C m(x))[j]) (x - p[a]); out = s h[a]. */
static void correct_row(const void *ctx, int64_t r, float *work)
{
    const struct pass *p = ctx;
    const struct model *m = p->l->m;
    const struct altup_weights *w = p->l->altup;
    int64_t h = m->config.hidden_size, n = m->config.altup.n;
    int64_t active = m->config.altup.active;
    float y[ALTUP_STREAMS], q[ALTUP_STREAMS], *news = work + h,
                                              *to = work + 2 * h;

    widen(m, state_x(p->s, r), h, work);
    modalities(p->l, work, y);
    apply(w->correct, y, n, n, q);
    widen(m, stream(p, r, active), h, news);
    for (int64_t k = 0; k < h; k++)
        news[k] = work[k] - news[k];
    for (int64_t j = 0; j < n; j++) {
        widen(m, stream(p, r, j), h, to);
        for (int64_t k = 0; k < h; k++)
            to[k] += (1 + q[j]) * news[k];
        narrow(m, to, h, stream(p, r, j));
        if (j != active)
            continue;
        widen(m, stream(p, r, j), h, to); /* as it was rounded */
        for (int64_t k = 0; w->scale && k < h; k++)
            to[k] *= w->scale[k];
        narrow(m, to, h, p->out + (size_t)(r * h) * m->size);
    }
}

/* h[1 ..] += a */
static void add_row(const void *ctx, int64_t r, float *work)
{
    const struct pass *p = ctx;
    const struct model *m = p->l->m;
    int64_t h = m->config.hidden_size;

    widen(m, p->a + (size_t)(r * h) * m->size, h, work);
    for (int64_t j = 1; j < m->config.altup.n; j++)
        if (m->bf16)
            m->k->add_bf16(work, NULL, h, stream(p, r, j));
        else
            m->k->add_f32(work, NULL, h, stream(p, r, j));
}

int altup_correct(struct layer *l, const struct state *s, struct err *e)
{
    struct model *m = l->m;
    const struct model_config *c = &m->config;
    const struct altup_weights *w = l->altup;
    struct pass p = { .l = l, .s = s };
    struct gate_pair g = { .ldg = c->altup.inputs,
                           .ldu = s->row,
                           .rows = s->rows,
                           .n = c->altup.inputs };

    if (buffer_reserve(&m->side[0], s->rows, c->hidden_size, m->size, "streams",
                       e) < 0)
        return e->code;
    p.out = m->side[0].p;
    if (run_pass(&p, correct_row, e) < 0 ||
        product_into(&m->side[1], m, &w->input[0], p.out, s->rows, "streams",
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
    p.a = m->side[0].p;
    return run_pass(&p, add_row, e);
}

/* ---- sparse gates ---- */

struct sparse {
    const struct layer *l;
    void *g;
    int64_t n;
};

static void sparse_row(const void *ctx, int64_t r, float *g)
{
    const struct sparse *j = ctx;
    const struct model *m = j->l->m;
    double cutoff = m->config.altup.cutoff[j->l->index], n = (double)j->n;
    void *row = state_at(j->g, m->dtype, r * j->n);
    double sum = 0, squares = 0, mean;
    float least;

    widen(m, row, j->n, g);
    for (int64_t i = 0; i < j->n; i++) {
        sum += g[i];
        squares += (double)g[i] * g[i];
    }
    mean = sum / n;
    least = (float)(mean + cutoff * sqrt(fmax(squares / n - mean * mean, 0)));
    for (int64_t i = 0; i < j->n; i++)
        g[i] = g[i] > least ? g[i] - least : 0;
    narrow(m, g, j->n, row);
}

int altup_sparsify(const struct layer *l, void *g, int64_t rows, int64_t n,
                   struct err *e)
{
    struct sparse j = { l, g, n };

    return altup_rows(rows, n, sparse_row, &j, e);
}
