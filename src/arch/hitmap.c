/* hitmap.c - see hitmap.h. */
#include "arch/hitmap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"

enum { FIRST = 64 };

struct ranked {
    float value;
    size_t at;
};

static int check(const struct frame *f, struct err *e)
{
    const float *x = f->data;

    if (f->dtype != DT_F32 || f->ndim != 2 ||
        (f->dims[1] != HITS && f->dims[1] != HIT_MASS) || !f->dims[0] ||
        f->dims[0] > HIT_EXPERTS_MAX || tensor_name_layer(f->name) < 0)
        return err_set(e, E_DATA,
                       "hit map '%s': not F32 [experts, %d] of a layer",
                       f->name, HITS);
    for (size_t i = 0; i < f->dims[0] * f->dims[1]; i++)
        if (!isfinite(x[i]) || x[i] < 0)
            return err_set(e, E_DATA,
                           "hit map '%s': expert %zu: a number is negative or "
                           "not finite",
                           f->name, i / (size_t)f->dims[1]);
    return 0;
}

/* Index of the layer's map, or where to insert it. */
static size_t place(const struct hitmaps *h, int64_t layer)
{
    size_t i = h->count;

    while (i > 0 && h->map[i - 1].layer >= layer)
        i--;
    return i;
}

const struct hitmap *hitmaps_find(const struct hitmaps *h, int64_t layer)
{
    size_t i = place(h, layer);

    return i < h->count && h->map[i].layer == layer ? &h->map[i] : NULL;
}

static int grow(struct hitmaps *h, struct err *e)
{
    size_t n = h->cap ? 2 * h->cap : FIRST;

    if (h->count < h->cap)
        return 0;
    if (mem_grow(&h->map, n * sizeof(*h->map), "hit maps", e) < 0)
        return e->code;
    h->cap = n;
    return 0;
}

/* The share of experts before has those that this one lacks. */
static void add(struct hitmap *m, const struct hitmap *before)
{
    for (size_t k = 0; k < m->experts * HITS; k++)
        m->value[k] += before->value[k];
    for (int k = 0; k < HITS; k++)
        m->sum[k] += before->sum[k];
}

int hitmaps_add(struct hitmaps *h, const struct frame *f, struct err *e)
{
    struct hitmap m = { .layer = tensor_name_layer(f->name) };
    size_t i;

    if (check(f, e) < 0 || grow(h, e) < 0)
        return e->code;
    m.experts = (size_t)f->dims[0];
    m.value = mem_zero(m.experts * HITS, sizeof(float), f->name, e);
    if (!m.value)
        return e->code;
    for (i = 0; i < m.experts; i++)
        memcpy(m.value + i * HITS, (const float *)f->data + i * f->dims[1],
               (size_t)f->dims[1] * sizeof(float));
    for (size_t k = 0; k < m.experts * HITS; k++)
        m.sum[k % HITS] += (double)m.value[k];
    i = place(h, m.layer);
    if (i < h->count && h->map[i].layer == m.layer) {
        if (f->sequence > 1 && h->map[i].experts == m.experts)
            add(&m, &h->map[i]);
        free(h->map[i].value);
    } else {
        memmove(h->map + i + 1, h->map + i, (h->count - i) * sizeof(*h->map));
        h->count++;
    }
    h->map[i] = m;
    return 0;
}

void hitmaps_release(struct hitmaps *h)
{
    for (size_t i = 0; i < h->count; i++)
        free(h->map[i].value);
    free(h->map);
    *h = (struct hitmaps){ 0 };
}

double hit_value(const struct hitmap *m, size_t expert, enum hit column)
{
    return (double)m->value[expert * HITS + (size_t)column];
}

size_t hit_count_below(const struct hitmap *m, double below)
{
    size_t n = 0;

    for (size_t i = 0; i < m->experts; i++)
        n += hit_value(m, i, HIT_TOKENS) < below;
    return n;
}

static int ascending(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    return (x->value > y->value) - (x->value < y->value);
}

/* rank[expert], from 0, of its value; ties get the mean of their ranks. */
static void rank(const struct hitmap *m, enum hit column, struct ranked *r,
                 double *rank)
{
    size_t end;

    for (size_t i = 0; i < m->experts; i++)
        r[i] = (struct ranked){ m->value[i * HITS + (size_t)column], i };
    qsort(r, m->experts, sizeof(*r), ascending);
    for (size_t i = 0; i < m->experts; i = end) {
        for (end = i + 1; end < m->experts && r[end].value == r[i].value;)
            end++;
        for (size_t k = i; k < end; k++)
            rank[r[k].at] = (double)(i + end - 1) / 2;
    }
}

int hit_rank_correlation(const struct hitmap *a, enum hit x,
                         const struct hitmap *b, enum hit y, double *r,
                         struct err *e)
{
    size_t n = a->experts;
    struct ranked *order = mem_zero(n, sizeof(*order), "ranks", e);
    double *p = mem_zero(n, 2 * sizeof(*p), "ranks", e), *q = p + n;
    double mean = (double)(n - 1) / 2, pq = 0, pp = 0, qq = 0;

    if (order && p) {
        rank(a, x, order, p);
        rank(b, y, order, q);
        for (size_t i = 0; i < n; i++) {
            pq += (p[i] - mean) * (q[i] - mean);
            pp += (p[i] - mean) * (p[i] - mean);
            qq += (q[i] - mean) * (q[i] - mean);
        }
        *r = pp > 0 && qq > 0 ? pq / sqrt(pp * qq) : NAN;
    }
    free(order);
    free(p);
    return order && p ? 0 : e->code;
}
