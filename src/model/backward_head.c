/* backward_head.c - see backward.h: the gradient through the head, tokens in
 * parts. */
#include <stdlib.h>

#include "common/math/rounded.h"
#include "model/backward.h"
#include "model/backward_parts.h"

struct head_pass {
    struct model *m;
    float *norm;
    void *w;                           /* [vocab, H], bf16, where layers run */
    struct buffer rows, normed, y, gy; /* of a part */
};

static int load(struct head_pass *s, struct err *e)
{
    struct model *m = s->m;
    const struct model_config *c = &m->config;
    const char *module = model_head_module(m, e);
    uint64_t rows, cols;
    uint16_t *w;

    if (!module ||
        checkpoint_linear_bf16(m->ck, module, &w, &rows, &cols, e) < 0)
        return e->code;
    s->w = w;
    if (rows == (uint64_t)c->vocab_size && cols == (uint64_t)c->hidden_size)
        return model_place(m, &s->w, (size_t)(rows * cols) * sizeof(*w), e);
    free(w);
    s->w = NULL;
    return err_set(e, E_DATA, "'%s' is not vocab_size by hidden_size", module);
}

static int run_part(struct head_pass *s, const void *host, int64_t n,
                    uint64_t first, float *g, struct err *e)
{
    struct model *m = s->m;
    const struct backward_table *back = backward_of(m);
    int64_t h = m->config.hidden_size;
    struct backward_head a = { .rows = n,
                               .h = h,
                               .vocab = m->config.vocab_size,
                               .first = first,
                               .w = s->w,
                               .scale = (float)m->config.logit_scale,
                               .cap = (float)m->config.logit_cap,
                               .rounded = rounded(n) };
    const void *x;

    if (model_reserve(m, &s->normed, n, h, m->size, "gradients", e) < 0 ||
        model_reserve(m, &s->y, n, h, sizeof(float), "gradients", e) < 0 ||
        model_reserve(m, &s->gy, n, h, sizeof(float), "gradients", e) < 0 ||
        backward_rows(m, &s->rows, host, false, n, &x, e) < 0 ||
        model_norm(m, x, s->norm, n, s->normed.p, e) < 0 ||
        back->widen(m->context, m->dtype, s->normed.p, n * h, s->y.p, e) < 0)
        return e->code;
    a.y = s->y.p;
    a.g = s->gy.p;
    if (back->head(m->context, &a, e) < 0)
        return e->code;
    return backward_stream(m, x, s->norm, a.g, n, g, true, e);
}

int backward_head(struct model *m, const void *x, int64_t n, uint64_t first,
                  float *g, struct err *e)
{
    int64_t h = m->config.hidden_size;
    struct head_pass s = { .m = m };
    int rc = backward_norm_vector(m, -1, "model.norm", h, &s.norm, e);

    if (rc >= 0)
        rc = load(&s, e);
    for (int64_t i = 0; i < n && rc >= 0; i += GRADIENT_ROWS)
        rc = run_part(&s, (const char *)x + (size_t)(i * h) * m->size,
                      n - i < GRADIENT_ROWS ? n - i : GRADIENT_ROWS,
                      first + (uint64_t)i, g + i * h, e);
    model_free(m, s.norm);
    model_free(m, s.w);
    model_buffer_release(m, &s.rows);
    model_buffer_release(m, &s.normed);
    model_buffer_release(m, &s.y);
    model_buffer_release(m, &s.gy);
    return rc;
}
