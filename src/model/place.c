/* place.c - see model.h and internal.h: device memory. */
#include <stdlib.h>
#include <string.h>

#include "arch/device_bytes.h"
#include "common/math/threads.h"
#include "model/internal.h"

bool model_on_device(const struct model *m)
{
    return m->on;
}

double model_device_bytes(const struct model *m)
{
    return layers_device_bytes(&m->config, m->size);
}

/* ---- memory ---- */

int model_alloc(const struct model *m, void **p, size_t n, bool spill,
                bool *spilled, struct err *e)
{
    bool to;

    if (!m->on) {
        *p = mem_zero(n ? n : 1, 1, "states", e);
        if (spilled)
            *spilled = false;
        return *p ? 0 : e->code;
    }
    if (m->on->alloc(m->context, p, n ? n : 1, spill, &to, e) < 0)
        return e->code;
    if (spilled)
        *spilled = to;
    if (m->on->zero(m->context, *p, n, e) < 0) {
        m->on->release(m->context, *p);
        *p = NULL;
        return e->code;
    }
    return 0;
}

void model_free(const struct model *m, void *p)
{
    if (m->on)
        m->on->release(m->context, p);
    else
        free(p);
}

int model_spare_bytes(const struct model *m, size_t *n, struct err *e)
{
    double need = model_device_bytes(m);

    *n = SIZE_MAX;
    if (!m->on)
        return 0;
    if (m->on->room(m->context, n, e) < 0)
        return e->code;
    *n = (double)*n > need ? *n - (size_t)need : 0;
    return 0;
}

int model_put(const struct model *m, void *to, const void *host, size_t n,
              struct err *e)
{
    if (m->on)
        return m->on->put(m->context, to, host, n, e);
    if (n) /* or there is nothing to copy from */
        memcpy(to, host, n);
    return 0;
}

int model_get(const struct model *m, void *host, const void *from, size_t n,
              struct err *e)
{
    if (m->on)
        return m->on->get(m->context, host, from, n, e);
    if (n)
        memcpy(host, from, n);
    return 0;
}

int model_copy(const struct model *m, void *to, const void *from, size_t n,
               struct err *e)
{
    if (m->on)
        return m->on->copy(m->context, to, from, n, e);
    threads_copy(to, from, n);
    return 0;
}

int model_reserve(const struct model *m, struct buffer *b, int64_t rows,
                  int64_t cols, size_t size, const char *what, struct err *e)
{
    bool spilled;
    size_t n;

    if (!m->on)
        return buffer_reserve(b, rows, cols, size, what, e);
    if (size_mul((size_t)rows, (size_t)cols, &n) || size_mul(n, size, &n))
        return err_set(e, E_TEMP, "%s: too large for memory", what);
    if (n <= b->cap && b->p)
        return 0;
    model_buffer_release(m, b);
    if (m->on->alloc(m->context, &b->p, n ? n : 1, false, &spilled, e) < 0) {
        b->p = NULL;
        return err_prefix(e, "%s", what);
    }
    b->cap = n;
    return 0;
}

int model_reserve_rows(const struct model *m, struct buffer *b, int64_t n,
                       struct err *e)
{
    return model_reserve(m, b, n, m->config.hidden_size, m->size, "states", e);
}

void model_buffer_release(const struct model *m, struct buffer *b)
{
    if (m->on)
        m->on->release(m->context, b->p);
    else
        free(b->p);
    *b = (struct buffer){ 0 };
}

int model_place(const struct model *m, void **p, size_t n, struct err *e)
{
    void *host = *p;
    bool spilled;

    if (!m->on || !host)
        return 0;
    *p = NULL;
    if (m->on->alloc(m->context, p, n, false, &spilled, e) < 0 ||
        m->on->put(m->context, *p, host, n, e) < 0) {
        m->on->release(m->context, *p);
        *p = NULL;
        free(host);
        return e->code;
    }
    free(host);
    return 0;
}

/* ---- differences ---- */

struct subtract_job {
    const struct model *m;
    char *to;
    const char *a, *b;
    const float *bias;
    size_t n; /* of a row */
};

static void subtract_rows(void *ctx, size_t begin, size_t end)
{
    const struct subtract_job *j = ctx;
    enum { PIECE = 1024 };
    float x[PIECE], y[PIECE];

    for (size_t r = begin; r < end; r++)
        for (size_t i = 0; i < j->n; i += PIECE) {
            size_t k = j->n - i < PIECE ? j->n - i : PIECE;
            size_t at = (r * j->n + i) * j->m->size;

            (void)!to_f32(x, j->a + at, j->m->dtype, k);
            (void)!to_f32(y, j->b + at, j->m->dtype, k);
            for (size_t c = 0; c < k; c++)
                x[c] -= y[c];
            for (size_t c = 0; j->bias && c < k; c++)
                x[c] -= j->bias[i + c];
            (void)!from_f32(j->to + at, j->m->dtype, x, k);
        }
}

int model_subtract(const struct model *m, void *to, const void *a,
                   const void *b, const float *bias, int64_t rows, int64_t n,
                   struct err *e)
{
    struct subtract_job j = { m, to, a, b, bias, (size_t)n };

    if (m->on)
        return m->on->subtract(m->context,
                               &(struct forward_difference){ .dtype = m->dtype,
                                                             .rows = rows,
                                                             .n = n,
                                                             .a = a,
                                                             .b = b,
                                                             .bias = bias,
                                                             .to = to },
                               e);
    threads_for((size_t)rows, 64, subtract_rows, &j);
    return 0;
}
