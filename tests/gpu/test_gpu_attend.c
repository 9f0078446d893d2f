/* test_gpu_attend - attention of the forward pass on the GPU: PROGRAM PLUG-IN
 * [SEED]. */
#include "heads.h"

/* a, or its first `past` rows and then the others behind them, of which it has
 * rows of so many bytes. */
static void attend_in_parts(int s, struct forward_attend a, int64_t past,
                            size_t q, size_t out)
{
    int64_t first[2] = { 0, past }, all = a.rows;

    if (past) {
        a.first = first;
        a.rows = past;
        OK(table[s]->attend(context[s], &a, e));
        a.rows = first[1] = all - past;
        a.past = past;
        a.q.p = (const char *)a.q.p + (size_t)past * q;
        a.out = (char *)a.out + (size_t)past * out;
    }
    OK(table[s]->attend(context[s], &a, e));
}

/* past: of the single sequence so many rows come first. */
static void test_attend(enum dtype t, const struct heads *h,
                        const int64_t *length, int64_t n, int64_t past)
{
    int64_t first[64], longest = sequences(first, length, n), rows = first[n];
    struct inputs x = inputs_of(t, h, rows, longest);
    size_t row = (size_t)(h->heads * h->v_dim) * item(t);
    struct twin out = poisoned((size_t)rows * row);

    for (int s = 0; s < SIDES; s++) {
        struct forward_attend a = call_of(s, t, h, &x);

        a.rows = rows;
        a.n_sequences = n;
        a.first = first;
        a.out = out.p[s];
        attend_in_parts(s, a, past, (size_t)q_row(h) * item(t), row);
    }
    same("attend", &out, t, false);
    drop_inputs(&x);
}

/* Rows outside of first..end of x, rows of so many bytes, become NaN on the GPU:
 * with `spoil`; without, all are as they were before a call. */
static void spoil_rows(const struct twin *x, const void *before, size_t row,
                       int64_t first, int64_t end, bool spoil)
{
    char *host = room(x->n);

    memcpy(host, before, x->n);
    if (spoil) {
        memset(host, 0xff, (size_t)first * row);
        memset(host + (size_t)end * row, 0xff, x->n - (size_t)end * row);
    }
    OK(table[GPU]->put(context[GPU], x->p[GPU], host, x->n, e));
    free(host);
}

/* A sequence's bytes on the GPU, whatever its neighbours in the batch are. */
static void test_neighbours(const struct heads *h)
{
    static const int64_t length[] = { 130, 333, 200 };
    enum dtype t = DT_BF16;
    int64_t first[4], longest = sequences(first, length, 3), rows = first[3];
    struct inputs x = inputs_of(t, h, rows, longest);
    struct twin *in[] = { &x.q, &x.k, &x.v, &x.tail };
    const int64_t n[] = { q_row(h), kv_row(h), h->kv * h->v_dim,
                          h->pad + h->tail };
    size_t row = (size_t)(h->heads * h->v_dim) * item(t);
    struct twin out = poisoned((size_t)rows * row);
    char *before[4], *got[2];

    for (int i = 0; i < 4; i++) {
        before[i] = room(in[i]->n);
        OK(table[GPU]->get(context[GPU], before[i], in[i]->p[GPU], in[i]->n,
                           e));
    }
    for (int k = 0; k < 2; k++) {
        struct forward_attend a = call_of(GPU, t, h, &x);

        for (int i = 0; i < 4; i++)
            spoil_rows(in[i], before[i], (size_t)n[i] * item(t), first[1],
                       first[2], k);
        a.rows = rows;
        a.n_sequences = 3;
        a.first = first;
        a.out = out.p[GPU];
        OK(table[GPU]->attend(context[GPU], &a, e));
        got[k] = room(out.n);
        OK(table[GPU]->get(context[GPU], got[k], out.p[GPU], out.n, e));
    }
    CHECK(!memcmp(got[0] + (size_t)first[1] * row,
                  got[1] + (size_t)first[1] * row,
                  (size_t)(first[2] - first[1]) * row));
    for (int i = 0; i < 4; i++)
        free(before[i]);
    free(got[0]);
    free(got[1]);
    drop(&out);
    drop_inputs(&x);
}

/* Keys that are turned before: the same bytes, on either side. */
static void test_turned(enum dtype t, const struct heads *h)
{
    static const int64_t length[] = { 130, 33 };
    int64_t first[3], longest = sequences(first, length, 2), rows = first[2];
    struct inputs x = inputs_of(t, h, rows, longest);
    struct twin out = poisoned((size_t)(rows * h->heads * h->v_dim) * item(t));
    char *q = room(x.q.n), *k = room(x.k.n), *got[2];

    OK(table[GPU]->get(context[GPU], q, x.q.p[GPU], x.q.n, e));
    OK(table[GPU]->get(context[GPU], k, x.k.p[GPU], x.k.n, e));
    for (int s = 0; s < SIDES; s++) {
        struct forward_attend a = call_of(s, t, h, &x);

        a.rows = rows;
        a.n_sequences = 2;
        a.first = first;
        a.out = out.p[s];
        for (int i = 0; i < 2; i++) {
            OK(table[s]->put(context[s], x.q.p[s], q, x.q.n, e));
            OK(table[s]->put(context[s], x.k.p[s], k, x.k.n, e));
            if (i) {
                OK(table[s]->turn(context[s], &a, e));
                a.turned = true;
                a.k_norm = NULL;
            }
            OK(table[s]->attend(context[s], &a, e));
            got[i] = room(out.n);
            OK(table[s]->get(context[s], got[i], out.p[s], out.n, e));
        }
        CHECK(!memcmp(got[0], got[1], out.n));
        free(got[0]);
        free(got[1]);
    }
    free(q);
    free(k);
    drop(&out);
    drop_inputs(&x);
}

/* New keys of n sequences, at row `past` of `each` rows, are turned apart, as the model
 * does in front of its cache. */
static void turn_apart(struct forward_attend a, enum dtype t)
{
    struct forward_heads *k = a.tail.p ? &a.tail : &a.k;
    size_t row = (size_t)k->row * item(t);
    char *rows = (char *)(uintptr_t)k->p + (size_t)a.past * row;
    size_t n = a.tail.p ? (size_t)a.tail_dim * item(t) :
                          (size_t)(a.n_kv_heads * a.head_dim) * item(t);
    bool spilled;
    void *apart;

    OK(table[GPU]->alloc(context[GPU], &apart, (size_t)a.rows * row, false,
                         &spilled, e));
    OK(table[GPU]->copy_rows(context[GPU], apart, row, rows,
                             (size_t)a.each * row, n, a.rows, e));
    k->p = apart;
    OK(table[GPU]->turn(context[GPU], &a, e));
    OK(table[GPU]->copy_rows(context[GPU], rows, (size_t)a.each * row, apart,
                             row, n, a.rows, e));
    table[GPU]->release(context[GPU], apart);
}

/* Sequences that go on by a token each: as if each were alone. */
static void test_each(enum dtype t, const struct heads *h)
{
    enum { N = 3, EACH = 290, PAST = 261 };
    const int64_t first[] = { 0, 1, 2, 3 };
    struct inputs x = inputs_of(t, h, N * EACH, PAST + 1);
    size_t row = (size_t)(h->heads * h->v_dim) * item(t);
    size_t q_bytes = (size_t)q_row(h) * item(t);
    size_t kv = (size_t)kv_row(h) * item(t), v_row, tail_row;
    struct twin out = poisoned(N * row);
    struct forward_attend a = call_of(GPU, t, h, &x);
    char *q = room(x.q.n), *k = room(x.k.n), *tail = room(x.tail.n);
    float *both[SIDES];

    v_row = (size_t)a.v.row * item(t);
    tail_row = (size_t)a.tail.row * item(t);
    OK(table[GPU]->get(context[GPU], q, x.q.p[GPU], x.q.n, e));
    OK(table[GPU]->get(context[GPU], k, x.k.p[GPU], x.k.n, e));
    OK(table[GPU]->get(context[GPU], tail, x.tail.p[GPU], x.tail.n, e));
    a.past = PAST;
    for (int i = 0; i < N; i++) {
        struct forward_attend one = a;

        one.rows = one.n_sequences = 1;
        one.first = first;
        one.q.p = (const char *)a.q.p + (size_t)i * q_bytes;
        one.k.p = (const char *)a.k.p + (size_t)(i * EACH) * kv;
        one.v.p = (const char *)a.v.p + (size_t)(i * EACH) * v_row;
        if (h->tail)
            one.tail.p = (const char *)a.tail.p + (size_t)(i * EACH) * tail_row;
        one.out = (char *)out.p[GPU] + (size_t)i * row;
        OK(table[GPU]->attend(context[GPU], &one, e));
    }
    /* its bytes go to the other side, which is not used */
    {
        void *host = room(out.n);

        OK(table[GPU]->get(context[GPU], host, out.p[GPU], out.n, e));
        OK(table[CPU]->put(context[CPU], out.p[CPU], host, out.n, e));
        memset(host, 0xff, out.n);
        OK(table[GPU]->put(context[GPU], out.p[GPU], host, out.n, e));
        free(host);
    }
    OK(table[GPU]->put(context[GPU], x.q.p[GPU], q, x.q.n, e));
    OK(table[GPU]->put(context[GPU], x.k.p[GPU], k, x.k.n, e));
    OK(table[GPU]->put(context[GPU], x.tail.p[GPU], tail, x.tail.n, e));
    a.rows = a.n_sequences = N;
    a.first = first;
    a.each = EACH;
    turn_apart(a, t);
    a.turned = true;
    a.k_norm = NULL;
    a.out = out.p[GPU];
    OK(table[GPU]->attend(context[GPU], &a, e));
    fetch(&out, t, both);
    compare("attend each", both[GPU], both[CPU], out.n / item(t),
            t == DT_BF16 ? 0.02 : 1e-5, t == DT_BF16 ? 5e-3 : 1e-5);
    free(both[GPU]);
    free(both[CPU]);
    free(q);
    free(k);
    free(tail);
    drop(&out);
    drop_inputs(&x);
}

static const struct heads all[] = {
    { .heads = 4, .kv = 4, .dim = 64, .v_dim = 64, .rotary = 64 },
    { .heads = 8,
      .kv = 2,
      .dim = 128,
      .v_dim = 128,
      .rotary = 128,
      .norm = true },
    { .heads = 6,
      .kv = 3,
      .dim = 128,
      .v_dim = 128,
      .rotary = 64,
      .window = 100 },
    { .heads = 4,
      .kv = 2,
      .dim = 64,
      .v_dim = 64,
      .rotary = 64,
      .window = 64,
      .norm = true },
    { .heads = 4,
      .kv = 4,
      .dim = 192,
      .v_dim = 128,
      .rotary = 64,
      .tail = 64,
      .pad = 512,
      .pairs = true },
    { .heads = 2,
      .kv = 2,
      .dim = 24,
      .v_dim = 16,
      .rotary = 8,
      .tail = 8,
      .pad = 40,
      .pairs = true },
    /* Kimi-Linear: nothing turns */
    { .heads = 4, .kv = 4, .dim = 192, .v_dim = 128, .tail = 64, .pad = 512 },
    { .heads = 3, .kv = 3, .dim = 20, .v_dim = 20, .rotary = 10, .norm = true },
    { .heads = 2, .kv = 1, .dim = 256, .v_dim = 256, .rotary = 256 },
    { .heads = 2,
      .kv = 1,
      .dim = 96,
      .v_dim = 96,
      .rotary = 96,
      .pairs = true },
    { .heads = 1, .kv = 1, .dim = 320, .v_dim = 320, .rotary = 320 },
    /* gpt-oss, Gemma 2, Llama 4 with RoPE and without, Phi-3 */
    { .heads = 8,
      .kv = 2,
      .dim = 64,
      .v_dim = 64,
      .rotary = 64,
      .window = 100,
      .sinks = true },
    { .heads = 4, .kv = 2, .dim = 256, .v_dim = 256, .rotary = 256, .cap = 2 },
    { .heads = 4,
      .kv = 2,
      .dim = 128,
      .v_dim = 128,
      .rotary = 128,
      .pairs = true,
      .norm = true,
      .chunk = 100 },
    { .heads = 3,
      .kv = 1,
      .dim = 20,
      .v_dim = 20,
      .rotary = 20,
      .sinks = true,
      .cap = 3,
      .chunk = 37 },
    { .heads = 4, .kv = 2, .dim = 128, .v_dim = 128, .grows = true },
    { .heads = 3, .kv = 3, .dim = 96, .v_dim = 96, .rotary = 96, .gap = 64 },
    { .heads = 2,
      .kv = 2,
      .dim = 192,
      .v_dim = 128,
      .rotary = 64,
      .tail = 64,
      .pad = 64,
      .window = 200,
      .pairs = true },
    { .heads = 4, .kv = 2, .dim = 48, .v_dim = 48, .rotary = 48 },
};

static void test_attention(enum dtype t)
{
    static const int64_t ragged[] = { 1, 65, 64, 3, 200, 129, 128, 300 };
    static const int64_t one[] = { 517 }, more[] = { 1, 1025, 2, 770 };

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        test_attend(t, &all[i], ragged, ARRAY_LEN(ragged), 0);
        for (int64_t past = 0; past < one[0]; past = past * 5 + 1)
            test_attend(t, &all[i], one, 1, past);
        test_attend(t, &all[i], one, 1, one[0] - 1);
        test_each(t, &all[i]);
        if (!all[i].tail)
            test_turned(t, &all[i]);
        if (t == DT_BF16) { /* several tiles of the kernels that have some */
            test_attend(t, &all[i], more, ARRAY_LEN(more), 0);
            test_neighbours(&all[i]);
        }
    }
}

int main(int argc, char **argv)
{
    twins_open(argc, argv);
    for (int i = 0; i < 2; i++) {
        enum dtype t = i ? DT_F32 : DT_BF16;

        test_attention(t);
        report(t);
    }
    return 0;
}
