/* heads.h - what the tests of attention on the GPU share: sizes of heads, random
 * inputs of these, and the call. */
#ifndef FORGE_TEST_GPU_HEADS_H
#define FORGE_TEST_GPU_HEADS_H

#include "twins.h"

struct heads {
    int64_t heads, kv, dim, v_dim, window, rotary, tail, pad;
    bool pairs, norm;
    int64_t chunk;
    float cap;
    bool sinks, grows;
    int64_t gap; /* elements between rows of q and of k, as if v were there */
};

struct inputs {
    struct twin q, k, v, tail, cs, qn, kn, sinks, growth;
};

/* Of a key what is its head's own; the rest is the tail. */
static inline int64_t own_dim(const struct heads *h)
{
    return h->dim - h->tail;
}

static inline int64_t kv_row(const struct heads *h)
{
    return h->tail ? h->heads * (own_dim(h) + h->v_dim) :
                     h->kv * h->dim + h->gap;
}

static inline int64_t q_row(const struct heads *h)
{
    return h->heads * h->dim + h->gap;
}

static inline struct inputs inputs_of(enum dtype t, const struct heads *h,
                                      int64_t rows, int64_t longest)
{
    return (struct inputs){
        .q = elements(t, rows * q_row(h), 1),
        .k = elements(t, rows * kv_row(h), 1),
        .v = elements(t, rows * h->kv * h->v_dim, 1),
        .tail = elements(t, rows * (h->pad + h->tail) + 8, 1),
        .cs = elements(DT_F32, longest * h->rotary + 8, .7f),
        .qn = elements(DT_F32, h->dim, 1),
        .kn = elements(DT_F32, h->dim, 1),
        .sinks = elements(DT_F32, h->heads, 1),
        .growth = elements(DT_F32, longest, 1),
    };
}

static inline void drop_inputs(struct inputs *x)
{
    drop(&x->q);
    drop(&x->k);
    drop(&x->v);
    drop(&x->tail);
    drop(&x->cs);
    drop(&x->qn);
    drop(&x->kn);
    drop(&x->sinks);
    drop(&x->growth);
}

/* The call of one side; its sequences and its output are left. */
static inline struct forward_attend
call_of(int s, enum dtype t, const struct heads *h, const struct inputs *x)
{
    int64_t own = own_dim(h);
    struct forward_attend a = {
        .dtype = t,
        .n_heads = h->heads,
        .n_kv_heads = h->kv,
        .head_dim = h->dim,
        .v_dim = h->v_dim,
        .window = h->window,
        .chunk = h->chunk,
        .cap = h->cap,
        .sinks = h->sinks ? x->sinks.p[s] : NULL,
        .growth = h->grows ? x->growth.p[s] : NULL,
        .scale = 1 / sqrtf((float)h->dim),
        .eps = 1e-6f,
        .q_norm = h->norm ? x->qn.p[s] : NULL,
        .k_norm = h->norm ? x->kn.p[s] : NULL,
        .rotary_at = h->tail ? own : 0,
        .rotary = h->rotary,
        .pairs = h->pairs,
        .cs = x->cs.p[s],
        .q = { x->q.p[s], q_row(h), h->dim },
        .k = { x->k.p[s], kv_row(h), h->dim },
        .v = { x->v.p[s], h->kv * h->v_dim, h->v_dim },
    };

    if (h->tail) {
        a.k.head = own + h->v_dim;
        a.v = (struct forward_heads){ (char *)x->k.p[s] + (size_t)own * item(t),
                                      kv_row(h), own + h->v_dim };
        a.tail = (struct forward_heads){
            (char *)x->tail.p[s] + (size_t)h->pad * item(t), h->pad + h->tail, 0
        };
        a.tail_dim = h->tail;
    }
    return a;
}

#endif
