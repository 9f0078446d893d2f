/* tuned.c - see tuned.h. */
#include "tune/tuned.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "checkpoint/checkpoint.h"
#include "common/math/quant.h"
#include "common/math/threads.h"
#include "tune/tuned_there.h"

struct tuned {
    struct tuning tuning;
    const struct model *m;
    const struct tune_table *table; /* on a device; NULL: on the host */
    struct frame *frame; /* all, payloads and lists of modules malloced */
    size_t frames;
    struct tuned_module *module; /* sorted by name */
    size_t modules;
    /* Where layers run, of all modules of a layer in order; NULL: none since the last
     * step. */
    float *gradients;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tuned_module *)a)->name,
                  ((const struct tuned_module *)b)->name);
}

static struct tuned_module *find(const struct tuned *t, const char *name)
{
    struct tuned_module key = { .name = name };

    return bsearch(&key, t->module, t->modules, sizeof(key), by_name);
}

/* ---- reading ---- */

/* Take a copy of a frame. */
static int keep(struct tuned *t, const struct frame *f, struct err *e)
{
    struct frame *to;
    char *modules = NULL;
    void *data = mem_pages(f->len + 1, f->name, e);

    if (!data)
        return e->code;
    if (f->modules && !(modules = strdup(f->modules))) {
        free(data);
        return err_set(e, E_TEMP, "'%s': out of memory", f->name);
    }
    if (mem_grow(&t->frame, (t->frames + 1) * sizeof(*t->frame), "codes", e) <
        0) {
        free(data);
        free(modules);
        return e->code;
    }
    memcpy(data, f->data, f->len);
    to = &t->frame[t->frames++];
    *to = *f;
    to->data = data;
    to->modules = modules;
    return 0;
}

static int add_codes(struct tuned *t, const struct frame *f, struct err *e)
{
    struct tuned_module m = { .layer = tensor_name_layer(f->name),
                              .rows = (int64_t)f->dims[0],
                              .cols = (int64_t)f->dims[1],
                              .bits = (int)dtype_bits(f->dtype),
                              .codes = (uint8_t *)(uintptr_t)f->data };

    if ((f->dtype != DT_U4 && f->dtype != DT_U8) || f->ndim != 2 ||
        f->dims[1] % 2)
        return err_set(e, E_DATA,
                       "'%s': codes are not U4 or U8 [rows, even columns]",
                       f->name);
    if (mem_grow(&t->module, (t->modules + 1) * sizeof(m), "codes", e) < 0)
        return e->code;
    t->module[t->modules++] = m;
    return 0;
}

static int add_grids(struct tuned_module *m, const struct frame *f,
                     struct err *e)
{
    if (!m)
        return err_set(e, E_DATA, "'%s' has qmeta, but no codes", f->name);
    m->group = f->group;
    m->groups = (int64_t)f->dims[1];
    m->scale_dtype = f->scale_dtype ? f->scale_dtype : DT_F16;
    m->meta = f->data;
    if (f->dtype != DT_QMETA4 || f->ndim != 2 || !f->group ||
        (int64_t)f->dims[0] != m->rows ||
        m->groups != (int64_t)quant_groups((uint64_t)m->cols, f->group))
        return err_set(e, E_DATA, "'%s': its qmeta does not fit its codes",
                       f->name);
    return quant_bits(m->meta[0]) == m->bits &&
                   quant_same_bits(m->meta, (size_t)(m->rows * m->groups)) ?
               0 :
               err_set(e, E_DATA,
                       "'%s': grids of other than %d bits, as its codes",
                       f->name, m->bits);
}

/* Codes first, then grids. */
static int sort(struct tuned *t, struct err *e)
{
    int rc = 0;

    for (size_t i = 0; i < t->frames && rc >= 0; i++)
        if (t->frame[i].role == ROLE_CODES)
            rc = add_codes(t, &t->frame[i], e);
    if (rc >= 0 && !t->modules)
        rc = err_set(e, E_DATA, "the input has no codes");
    if (rc < 0)
        return rc;
    /* names stay where they are now: in the frames */
    for (size_t i = 0, k = 0; i < t->frames; i++)
        if (t->frame[i].role == ROLE_CODES)
            t->module[k++].name = t->frame[i].name;
    qsort(t->module, t->modules, sizeof(*t->module), by_name);
    for (size_t i = 0; i < t->frames && rc >= 0; i++)
        if (t->frame[i].role == ROLE_QMETA)
            rc = add_grids(find(t, t->frame[i].name), &t->frame[i], e);
    for (size_t i = 0; i < t->modules && rc >= 0; i++)
        if (!t->module[i].meta)
            rc = err_set(e, E_DATA, "'%s' has codes, but no qmeta",
                         t->module[i].name);
    return rc;
}

/* All modules are linears of the model, of their shapes. */
static int check_model(const struct tuned *t, const struct model_config *c,
                       struct err *e)
{
    size_t known = 0;
    int rc = 0;

    for (int64_t layer = 0; layer < c->n_layers && rc >= 0; layer++)
        for (int64_t i = model_linear_count(c, layer); i-- > 0 && rc >= 0;) {
            const struct tuned_module *m;
            struct linear l;

            model_linear(c, layer, i, &l);
            m = find(t, l.module);
            known += m != NULL;
            if (m && (m->rows != l.rows || m->cols != l.cols))
                rc = err_set(
                    e, E_DATA,
                    "'%s': the codes are %lldx%lld, the config says %lldx%lld",
                    m->name, (long long)m->rows, (long long)m->cols,
                    (long long)l.rows, (long long)l.cols);
        }
    if (rc >= 0 && known != t->modules)
        rc =
            err_set(e, E_DATA, "%zu of %zu modules are no linears of the model",
                    t->modules - known, t->modules);
    return rc;
}

static int weights(void *ctx, const char *module, int64_t rows, int64_t cols,
                   float **w, struct err *e);
static const void *weights_there(void *ctx, const char *module);
static int gradient(void *ctx, const char *module, int64_t rows, int64_t cols,
                    float **g, struct err *e);

int tuned_open(struct tuned **t, const struct model *m, struct err *e)
{
    *t = mem_zero(1, sizeof(**t), "codes", e);
    if (!*t)
        return e->code;
    (*t)->tuning = (struct tuning){ *t, weights, weights_there, gradient };
    (*t)->m = m;
    return model_on_device(m) ? tuned_there_open(&(*t)->table, e) : 0;
}

int tuned_read(struct tuned *t, struct stream_reader *in, struct err *e)
{
    struct frame f;
    int rc;

    while ((rc = stream_next(in, &f, e)) > 0)
        if (keep(t, &f, e) < 0)
            return e->code;
    return rc;
}

/* Weights of the modules of a layer, each of which gets its place among them. */
static size_t layer_weights(struct tuned *t, int64_t layer)
{
    size_t n = 0;

    for (size_t i = 0; i < t->modules; i++) {
        struct tuned_module *m = &t->module[i];

        if (m->layer != layer)
            continue;
        m->at = n;
        n += (size_t)(m->rows * m->cols);
    }
    return n;
}

int tuned_check(struct tuned *t, const struct model_config *c, struct err *e)
{
    return sort(t, e) < 0 ? e->code : check_model(t, c, e);
}

void tuned_close(struct tuned *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->modules; i++) {
        model_free(t->m, t->module[i].v);
        if (t->table) {
            model_free(t->m, t->module[i].meta_there);
            model_free(t->m, t->module[i].w);
        }
    }
    for (size_t i = 0; i < t->frames; i++) {
        free((void *)(uintptr_t)t->frame[i].data);
        free((void *)(uintptr_t)t->frame[i].modules);
    }
    model_free(t->m, t->gradients);
    free(t->module);
    free(t->frame);
    free(t);
}

/* ---- rows ---- */

struct rows {
    struct tuned_module *m;
    const float *w;      /* weights to begin at */
    float *v;            /* where they begin; or as they are now, the host's */
    float *to;           /* values of the codes */
    double *squares;     /* [rows, 2]: of w, and of its distance to them */
    float start;         /* how far from its code a number begins at most */
    float rate, back[2]; /* of a step; 1 - beta^step of Adam's moments */
    int64_t *moved;      /* [rows] */
    uint8_t *codes;      /* packed */
    struct threads_error error;
};

static struct qgrid grid_of(const struct tuned_module *m, int64_t row,
                            int64_t col)
{
    return quant_grid(m->meta[row * m->groups + col / m->group],
                      m->scale_dtype);
}

static int code_of(float v, int top)
{
    float r = rintf(v);

    return r < 0 ? 0 : r > (float)top ? top : (int)r;
}

/* Where a group of a row ends. */
static int64_t group_end(const struct tuned_module *m, int64_t col)
{
    return col + m->group < m->cols ? col + m->group : m->cols;
}

static void begin_row(const struct rows *j, int64_t row, const uint8_t *code)
{
    const struct tuned_module *m = j->m;
    const float *w = j->w + row * m->cols;
    float *v = j->v + row * m->cols;

    for (int64_t at = 0; at < m->cols; at += m->group) {
        struct qgrid g = grid_of(m, row, at);

        for (int64_t c = at; c < group_end(m, at); c++) {
            float u = w[c] / g.scale + (float)g.zero, q = (float)code[c];
            float d = w[c] - quant_value(code[c], g);

            u = u < q - j->start ? q - j->start : u;
            v[c] = u > q + j->start ? q + j->start : u;
            j->squares[2 * row] += (double)w[c] * (double)w[c];
            j->squares[2 * row + 1] += (double)d * (double)d;
        }
    }
}

static void begin_rows(void *ctx, size_t begin, size_t end)
{
    struct rows *j = ctx;
    size_t cols = (size_t)j->m->cols;
    struct err e;
    uint8_t *code = scratch_thread(cols, &e);

    if (!code) {
        threads_error_add(&j->error, begin, &e);
        return;
    }
    for (size_t r = begin; r < end; r++) {
        quant_unpack_row(code,
                         j->m->codes + r * quant_row_bytes(cols, j->m->bits),
                         cols, j->m->bits);
        begin_row(j, (int64_t)r, code);
    }
}

/* v[rows, cols] at the beginning, from the original weights w. */
static int begin_module(struct tuned_module *m, const float *w, float start,
                        float *v, struct err *e)
{
    double sum[2] = { 0, 0 };
    struct rows j = { .m = m, .w = w, .v = v, .start = start };

    j.squares = mem_zero((size_t)m->rows, 2 * sizeof(double), m->name, e);
    if (!j.squares)
        return e->code;
    threads_error_init(&j.error);
    threads_for((size_t)m->rows, 16, begin_rows, &j);
    for (int64_t i = 0; i < 2 * m->rows; i++)
        sum[i % 2] += j.squares[i];
    free(j.squares);
    if (threads_error_take(&j.error, e) < 0)
        return e->code;
    return sum[1] > 0.5 * sum[0] ?
               err_set(e, E_DATA,
                       "'%s': codes of other weights than the model's",
                       m->name) :
               0;
}

static int begin_host(struct tuned_module *m, const float *w, float start,
                      struct err *e)
{
    size_t n = (size_t)(m->rows * m->cols);

    m->v = mem_zero(3 * n, sizeof(*m->v), m->name, e);
    if (!m->v)
        return e->code;
    m->first = m->v + n;
    m->second = m->first + n;
    return begin_module(m, w, start, m->v, e);
}

static int begin_there(const struct tuned *t, struct tuned_module *m,
                       const float *w, float start, struct err *e)
{
    float *v = mem_pages((size_t)(m->rows * m->cols) * sizeof(*v), m->name, e);
    int rc = v ? begin_module(m, w, start, v, e) : e->code;

    if (rc >= 0)
        rc = tuned_there_place(t->m, t->table, m, v, e);
    free(v);
    return rc;
}

int tuned_begin(struct tuned *t, const char *dir, double rate, struct err *e)
{
    float start = (float)(0.5 - tuned_near(rate));
    struct checkpoint *ck = NULL;
    int rc = checkpoint_open(&ck, dir, e);

    for (size_t i = 0; i < t->modules && rc >= 0; i++) {
        struct tuned_module *m = &t->module[i];
        float *w = NULL;
        uint64_t rows, cols;

        rc = checkpoint_linear(ck, m->name, &w, &rows, &cols, e);
        if (rc >= 0 && (rows != (uint64_t)m->rows || cols != (uint64_t)m->cols))
            rc = err_set(e, E_DATA, "'%s' has another shape than its codes",
                         m->name);
        if (rc >= 0)
            rc = t->table ? begin_there(t, m, w, start, e) :
                            begin_host(m, w, start, e);
        free(w);
    }
    checkpoint_close(ck);
    return rc;
}

/* ---- the model's weights ---- */

static void value_rows(void *ctx, size_t begin, size_t end)
{
    const struct rows *j = ctx;
    const struct tuned_module *m = j->m;

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++)
        for (int64_t at = 0; at < m->cols; at += m->group) {
            struct qgrid g = grid_of(m, r, at);

            for (int64_t c = at; c < group_end(m, at); c++)
                j->to[r * m->cols + c] =
                    quant_value(code_of(m->v[r * m->cols + c], g.top), g);
        }
}

static int weights(void *ctx, const char *module, int64_t rows, int64_t cols,
                   float **w, struct err *e)
{
    struct rows j = { .m = find(ctx, module) };

    if (!j.m)
        return 0;
    j.to = mem_pages((size_t)(rows * cols) * sizeof(float), module, e);
    if (!j.to)
        return e->code;
    threads_for((size_t)rows, 16, value_rows, &j);
    *w = j.to;
    return 1;
}

static const void *weights_there(void *ctx, const char *module)
{
    const struct tuned_module *m = find(ctx, module);

    return m ? m->w : NULL;
}

static int gradient(void *ctx, const char *module, int64_t rows, int64_t cols,
                    float **g, struct err *e)
{
    struct tuned *t = ctx;
    struct tuned_module *m = find(t, module);
    void *p;

    (void)rows;
    (void)cols;
    *g = NULL;
    if (!m)
        return 0;
    if (!t->gradients) {
        if (model_alloc(t->m, &p, layer_weights(t, m->layer) * sizeof(**g),
                        false, NULL, e) < 0)
            return err_prefix(e, "layer %lld", (long long)m->layer);
        t->gradients = p;
    }
    if (!m->g)
        m->g = t->gradients + m->at;
    *g = m->g;
    return 0;
}

const struct tuning *tuned_weights(struct tuned *t)
{
    return &t->tuning;
}

/* ---- a step ---- */

static void step_group(const struct rows *j, int64_t at, int64_t n, float scale)
{
    const struct tuned_module *m = j->m;

    for (int64_t i = at; i < at + n; i++) {
        float g = m->g[i] * scale;

        m->first[i] =
            (float)TUNE_BETA1 * m->first[i] + (float)(1 - TUNE_BETA1) * g;
        m->second[i] =
            (float)TUNE_BETA2 * m->second[i] + (float)(1 - TUNE_BETA2) * g * g;
        m->v[i] -= j->rate * (m->first[i] / j->back[0]) /
                   (sqrtf(m->second[i] / j->back[1]) + TUNE_EPSILON);
    }
}

static void step_rows(void *ctx, size_t begin, size_t end)
{
    const struct rows *j = ctx;
    const struct tuned_module *m = j->m;

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++)
        for (int64_t at = 0; at < m->cols; at += m->group)
            step_group(j, r * m->cols + at, group_end(m, at) - at,
                       grid_of(m, r, at).scale);
}

int tuned_step(struct tuned *t, int64_t layer, float rate, int64_t step,
               struct err *e)
{
    const float back[2] = { (float)(1 - pow(TUNE_BETA1, (double)step)),
                            (float)(1 - pow(TUNE_BETA2, (double)step)) };
    int rc = t->table ? tuned_there_step(t->m, t->table, t->module, t->modules,
                                         layer, rate, back, e) :
                        0;

    for (size_t i = 0; i < t->modules; i++) {
        struct tuned_module *m = &t->module[i];
        struct rows j = { .m = m, .rate = rate, .back = { back[0], back[1] } };

        if (m->layer != layer || !m->g)
            continue;
        if (!t->table)
            threads_for((size_t)m->rows, 16, step_rows, &j);
        m->g = NULL;
    }
    model_free(t->m, t->gradients);
    t->gradients = NULL;
    return rc;
}

/* ---- writing ---- */

int tuned_write_gradients(const struct tuned *t, int64_t layer,
                          struct stream_writer *out, struct err *e)
{
    for (size_t i = 0; i < t->modules; i++) {
        const struct tuned_module *m = &t->module[i];
        struct frame f = { .role = ROLE_WEIGHT,
                           .dtype = DT_F32,
                           .ndim = 2,
                           .dims = { (uint64_t)m->rows, (uint64_t)m->cols },
                           .len = (size_t)(m->rows * m->cols) * sizeof(*m->g) };
        float *g;
        int rc;

        if (m->layer != layer || !m->g)
            continue;
        snprintf(f.name, sizeof(f.name), "%s", m->name);
        rc = tuned_there_fetch(t->m, m, m->g, &g, e);
        f.data = g;
        if (rc >= 0)
            rc = stream_write(out, &f, e);
        free(g);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void pack_rows(void *ctx, size_t begin, size_t end)
{
    struct rows *j = ctx;
    const struct tuned_module *m = j->m;
    size_t cols = (size_t)m->cols, bytes = quant_row_bytes(cols, m->bits);
    struct err e;
    uint8_t *code = scratch_thread(2 * cols, &e), *was = code + cols;

    if (!code) {
        threads_error_add(&j->error, begin, &e);
        return;
    }
    for (size_t r = begin; r < end; r++) {
        const float *v = j->v + r * cols;

        quant_unpack_row(was, m->codes + r * bytes, cols, m->bits);
        for (size_t c = 0; c < cols; c++) {
            code[c] = (uint8_t)code_of(v[c], quant_top(m->bits));
            j->moved[r] += code[c] != was[c];
        }
        quant_pack_row(j->codes + r * bytes, code, cols, m->bits);
    }
}

static int write_codes(const struct tuned *t, const struct frame *from,
                       struct stream_writer *out, int64_t *moved, struct err *e)
{
    struct rows j = { .m = find(t, from->name) };
    struct frame f = *from;
    int rc;

    j.codes = mem_alloc(f.len, f.name, e);
    j.moved = mem_zero((size_t)j.m->rows, sizeof(*j.moved), f.name, e);
    rc = j.codes && j.moved ? tuned_there_fetch(t->m, j.m, j.m->v, &j.v, e) :
                              e->code;
    threads_error_init(&j.error);
    if (!rc) {
        threads_for((size_t)j.m->rows, 16, pack_rows, &j);
        rc = threads_error_take(&j.error, e);
    }
    for (int64_t r = 0; !rc && r < j.m->rows; r++)
        *moved += j.moved[r];
    f.data = j.codes;
    if (!rc)
        rc = stream_write(out, &f, e);
    free(j.v);
    free(j.codes);
    free(j.moved);
    return rc;
}

int tuned_write(const struct tuned *t, struct stream_writer *out, double *moved,
                struct err *e)
{
    int64_t codes = 0, others = 0;

    for (size_t i = 0; i < t->frames; i++)
        if ((t->frame[i].role == ROLE_CODES ?
                 write_codes(t, &t->frame[i], out, &others, e) :
                 stream_write(out, &t->frame[i], e)) < 0)
            return e->code;
    for (size_t i = 0; i < t->modules; i++)
        codes += t->module[i].rows * t->module[i].cols;
    *moved = (double)others / (double)codes;
    return 0;
}
