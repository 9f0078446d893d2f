/* test_gpu_decode - attention of one new token a sequence with a KV cache on the GPU,
 * against its formula in double precision: PROGRAM PLUG-IN [SEED [small]]. */
#include "heads.h"

/* Elements of a twin as f32. */
static float *floats_of(const struct twin *x, enum dtype t)
{
    float *both[SIDES];

    fetch(x, t, both);
    free(both[CPU]);
    return both[GPU];
}

/* Rows of a sequence's cache, and a query, as f32. */
struct rows {
    const float *q, *k, *v, *tail;
    struct forward_attend a; /* the strides of these */
    int64_t begin, past;
};

static double score(const struct rows *r, int64_t head, int64_t key)
{
    const struct forward_attend *a = &r->a;
    int64_t own = a->head_dim - a->tail_dim;
    const float *q = r->q + head * a->q.head;
    const float *k =
        r->k + key * a->k.row + head / (a->n_heads / a->n_kv_heads) * a->k.head;
    double s = 0;

    for (int64_t i = 0; i < own; i++)
        s += (double)q[i] * (double)k[i];
    for (int64_t i = 0; i < a->tail_dim; i++)
        s += (double)q[own + i] * (double)r->tail[key * a->tail.row + i];
    s *= (double)a->scale;
    return a->cap > 0 ? (double)a->cap * tanh(s / (double)a->cap) : s;
}

/* out[heads, v_dim] = the sum of exp(s) v over that of exp(s), with the sinks. */
static void attended(const struct rows *r, const float *sinks, float *out)
{
    const struct forward_attend *a = &r->a;

    for (int64_t head = 0; head < a->n_heads; head++, out += a->v_dim) {
        const float *v = r->v + head / (a->n_heads / a->n_kv_heads) * a->v.head;
        double sum = sinks ? exp((double)sinks[head]) : 0, to[512] = { 0 };

        for (int64_t key = r->begin; key <= r->past; key++) {
            double p = exp(score(r, head, key));

            sum += p;
            for (int64_t i = 0; i < a->v_dim; i++)
                to[i] += p * (double)v[key * a->v.row + i];
        }
        for (int64_t i = 0; i < a->v_dim; i++)
            out[i] = (float)(to[i] / sum);
    }
}

/* Rows that no query sees become NaN on the GPU: of each of n sequences those in
 * front of `begin` and behind `past`. */
static void hide(const struct twin *x, size_t row, int64_t n, int64_t each,
                 int64_t begin, int64_t past)
{
    char *host = room(x->n);

    OK(table[GPU]->get(context[GPU], host, x->p[GPU], x->n, e));
    for (int64_t i = 0; i < n; i++) {
        char *own = host + (size_t)(i * each) * row;

        memset(own, 0xff, (size_t)begin * row);
        memset(own + (size_t)(past + 1) * row, 0xff,
               (size_t)(each - past - 1) * row);
    }
    OK(table[GPU]->put(context[GPU], x->p[GPU], host, x->n, e));
    free(host);
}

/* Sequence i of a call for several, alone. */
static struct forward_attend alone(struct forward_attend a, int64_t i)
{
    size_t size = item(a.dtype), at = (size_t)(i * a.each);

    a.q.p = (const char *)a.q.p + (size_t)(i * a.q.row) * size;
    a.k.p = (const char *)a.k.p + at * (size_t)a.k.row * size;
    a.v.p = (const char *)a.v.p + at * (size_t)a.v.row * size;
    if (a.tail.p)
        a.tail.p = (const char *)a.tail.p + at * (size_t)a.tail.row * size;
    a.rows = a.n_sequences = 1;
    a.each = a.past ? 0 : a.each;
    return a;
}

/* The answer, with the same bits of each sequence alone. */
static void decode(const struct forward_attend *a, const float *want)
{
    size_t count = (size_t)(a->n_heads * a->v_dim),
           row = count * item(a->dtype);
    size_t n = (size_t)a->n_sequences;
    struct twin out = poisoned(n * row);
    struct forward_attend call = *a;
    char *got = room(n * row), *one = room(row);
    float *numbers = room(n * count * 4);

    call.out = out.p[GPU];
    OK(table[GPU]->attend(context[GPU], &call, e));
    OK(table[GPU]->get(context[GPU], got, out.p[GPU], n * row, e));
    CHECK(to_f32(numbers, got, a->dtype, n * count));
    compare("decode", numbers, want, n * count,
            a->dtype == DT_BF16 ? 0.02 : 2e-5,
            a->dtype == DT_BF16 ? 5e-3 : 1e-5);
    for (size_t i = 0; i < n; i++) {
        call = alone(*a, (int64_t)i);
        call.out = out.p[GPU];
        OK(table[GPU]->attend(context[GPU], &call, e));
        OK(table[GPU]->get(context[GPU], one, out.p[GPU], row, e));
        CHECK(!memcmp(one, got + i * row, row));
    }
    free(got);
    free(one);
    free(numbers);
    drop(&out);
}

/* A new token of each of n sequences, which see `keys` at most. */
static void test_decode(enum dtype t, const struct heads *h, int64_t keys,
                        int64_t n)
{
    static const int64_t first[] = { 0, 1, 2 };
    int64_t past = keys - 1, each = keys + 3, begin = 0;
    struct inputs x = inputs_of(t, h, n * each, keys);
    struct forward_attend a = call_of(GPU, t, h, &x);
    float *q = floats_of(&x.q, t), *k = floats_of(&x.k, t);
    float *v = floats_of(&x.v, t), *tail = floats_of(&x.tail, t);
    float *sinks = floats_of(&x.sinks, DT_F32);
    float *want = room((size_t)(n * h->heads * h->v_dim) * 4);

    if (h->chunk)
        begin = past - past % h->chunk;
    else if (h->window && past >= h->window)
        begin = past - h->window + 1;
    a.rows = a.n_sequences = n;
    a.first = first;
    a.past = past;
    a.each = each;
    a.turned = true;
    for (int64_t i = 0; i < n; i++) {
        struct rows r = { .q = q + i * a.q.row,
                          .k = k + i * each * a.k.row,
                          .v = h->tail ? k + i * each * a.k.row + own_dim(h) :
                                         v + i * each * a.v.row,
                          .tail = tail + i * each * a.tail.row + h->pad,
                          .a = a,
                          .begin = begin,
                          .past = past };

        attended(&r, h->sinks ? sinks : NULL, want + i * h->heads * h->v_dim);
    }
    hide(&x.k, (size_t)a.k.row * item(t), n, each, begin, past);
    if (h->tail)
        hide(&x.tail, (size_t)a.tail.row * item(t), n, each, begin, past);
    else
        hide(&x.v, (size_t)a.v.row * item(t), n, each, begin, past);
    decode(&a, want);
    free(q);
    free(k);
    free(v);
    free(tail);
    free(sinks);
    free(want);
    drop_inputs(&x);
}

static void test_decodes(enum dtype t, bool small)
{
    static const int64_t keys[] = { 1, 2, 31, 33, 257, 512, 513, 1000 };
    static const struct heads of[] = {
        { .heads = 4, .kv = 4, .dim = 64, .v_dim = 64 },
        { .heads = 6, .kv = 2, .dim = 128, .v_dim = 128 },
        { .heads = 8, .kv = 2, .dim = 96, .v_dim = 96, .gap = 64 },
        { .heads = 7, .kv = 1, .dim = 64, .v_dim = 64 },
        { .heads = 12, .kv = 1, .dim = 128, .v_dim = 128 },
        { .heads = 4, .kv = 2, .dim = 256, .v_dim = 256 },
        { .heads = 5, .kv = 1, .dim = 320, .v_dim = 512 },
        { .heads = 4,
          .kv = 4,
          .dim = 192,
          .v_dim = 128,
          .tail = 64,
          .pad = 64 },
        { .heads = 2, .kv = 2, .dim = 24, .v_dim = 16, .tail = 8, .pad = 40 },
        { .heads = 6, .kv = 2, .dim = 128, .v_dim = 128, .window = 100 },
        { .heads = 3, .kv = 1, .dim = 64, .v_dim = 64, .window = 600 },
        { .heads = 4, .kv = 2, .dim = 128, .v_dim = 128, .chunk = 100 },
        { .heads = 4, .kv = 2, .dim = 64, .v_dim = 64, .chunk = 513 },
        { .heads = 6,
          .kv = 2,
          .dim = 64,
          .v_dim = 64,
          .cap = 2,
          .sinks = true },
        { .heads = 3, .kv = 1, .dim = 20, .v_dim = 20 }, /* f32: whole packs */
        { .heads = 3, .kv = 1, .dim = 30, .v_dim = 30 },
        { .heads = 2, .kv = 2, .dim = 64, .v_dim = 64, .gap = 2 },
    };

    for (size_t i = 0; i < ARRAY_LEN(of); i++) {
        for (size_t j = 0; j < ARRAY_LEN(keys) - (small ? 2 : 0); j++)
            test_decode(t, &of[i], keys[j], 2);
        if (!small)
            test_decode(t, &of[i], 2100, 1);
    }
}

int main(int argc, char **argv)
{
    twins_open(argc, argv);
    for (int i = 0; i < 2; i++) {
        enum dtype t = i ? DT_F32 : DT_BF16;

        test_decodes(t, argc > 3); /* small: for sanitizers */
        report(t);
    }
    return 0;
}
