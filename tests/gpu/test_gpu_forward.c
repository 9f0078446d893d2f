/* test_gpu_forward - the operations of the forward pass on the GPU against the
 * CPU's: PROGRAM PLUG-IN [SEED].  The CPU's are those of the fake plug-in, which
 * lies in ../helper or beside this program.
 *
 * What is rounded element by element is equal to the bit; sums are made in
 * another order: f32 to 1e-5 of the largest number, bf16 to the neighbour of what
 * was rounded.  Outputs are poisoned before (NaN), so that none goes unwritten. */
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "../unit/w4_linear.h"
#include "gpu.h"
#include "model/forward_table.h"

enum { GPU, CPU, SIDES };
static const struct forward_table *table[SIDES];
static struct cuda_context *context[SIDES];

/* Memory on both, with the same in it. */
struct twin {
    void *p[SIDES];
    size_t n;
};

static size_t item(enum dtype t)
{
    return t == DT_BF16 ? 2 : 4;
}

static struct twin twin(const void *host, size_t n)
{
    struct twin t = { .n = n };
    bool spilled;

    for (int s = 0; s < SIDES; s++) {
        OK(table[s]->alloc(context[s], &t.p[s], n, false, &spilled, e));
        OK(table[s]->put(context[s], t.p[s], host, n, e));
    }
    return t;
}

static struct twin poisoned(size_t n)
{
    void *host = room(n);
    struct twin t;

    memset(host, 0xff, n); /* NaN, in both types */
    t = twin(host, n);
    free(host);
    return t;
}

/* n elements, normal. */
static struct twin elements(enum dtype t, int64_t n, float size)
{
    float *x = room((size_t)n * 4);
    void *to = room((size_t)n * 4);
    struct twin r;

    for (int64_t i = 0; i < n; i++)
        x[i] = size * normal();
    CHECK(from_f32(to, t, x, (size_t)n));
    r = twin(to, (size_t)n * item(t));
    free(x);
    free(to);
    return r;
}

static void drop(struct twin *t)
{
    for (int s = 0; s < SIDES; s++)
        table[s]->release(context[s], t->p[s]);
}

/* Both as f32. */
static void fetch(const struct twin *t, enum dtype dtype, float *to[SIDES])
{
    void *host = room(t->n);

    for (int s = 0; s < SIDES; s++) {
        to[s] = room(t->n / item(dtype) * 4);
        OK(table[s]->get(context[s], host, t->p[s], t->n, e));
        CHECK(to_f32(to[s], host, dtype, t->n / item(dtype)));
    }
    free(host);
}

static double wrong; /* the largest norm of a difference so far */

/* tolerance: of the largest number; 0: equal to the bit. */
static void compare(const char *what, const float *a, const float *b, size_t n,
                    double tolerance, double most_wrong)
{
    double most = 0, error = 0, sum = 0, square = 0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);

        if (!isfinite(a[i]) || !isfinite(b[i])) {
            fprintf(stderr, "%s: %zu of %zu: %g, CPU %g\n", what, i, n,
                    (double)a[i], (double)b[i]);
            exit(1);
        }
        most = fmax(most, fabs((double)b[i]));
        error = fmax(error, d);
        sum += d * d;
        square += (double)b[i] * (double)b[i];
    }
    sum = square > 0 ? sqrt(sum / square) : sqrt(sum);
    if (error > tolerance * most || sum > most_wrong) {
        fprintf(stderr, "%s: %zu: error %g of %g, norm %g\n", what, n, error,
                most, sum);
        exit(1);
    }

    wrong = fmax(wrong, sum);
}

static void near(const char *what, struct twin *t, enum dtype dtype,
                 double tolerance, double most_wrong)
{
    float *x[SIDES];

    fetch(t, dtype, x);
    compare(what, x[GPU], x[CPU], t->n / item(dtype), tolerance, most_wrong);
    for (int s = 0; s < SIDES; s++)
        free(x[s]);
    drop(t);
}

/* exact: the same bits. */
static void same(const char *what, struct twin *t, enum dtype dtype, bool exact)
{
    bool half = dtype == DT_BF16;

    near(what, t, dtype,
         exact ? 0 :
         half  ? 0.02 :
                 2e-5,
         exact ? 0 :
         half  ? 4e-3 :
                 1e-5);
}

#define BOTH(call)                                                             \
    for (int s = 0; s < SIDES; s++)                                            \
    OK(call)

/* ---- what is done to rows ---- */

static void test_norm(enum dtype t, int64_t rows, int64_t n, int64_t ld)
{
    struct twin x = elements(t, rows * ld, 3);
    struct twin w = elements(DT_F32, n, 1);
    struct twin out = poisoned((size_t)(rows * n) * item(t));

    BOTH(table[s]->norm(context[s],
                        &(struct forward_norm){ .dtype = t,
                                                .x = x.p[s],
                                                .rows = rows,
                                                .n = n,
                                                .ld = ld,
                                                .w = w.p[s],
                                                .eps = 1e-6f,
                                                .out = out.p[s] },
                        e));
    same("norm", &out, t, false);
    drop(&x);
    drop(&w);
}

/* Weights are the device's own; they come from the same numbers. */
static struct twin weights_of(enum dtype t, int64_t rows, int64_t depth)
{
    float *x = room((size_t)(rows * depth) * 4);
    void *host = room((size_t)(rows * depth) * 4);
    struct twin r = { .n = 0 };

    for (int64_t i = 0; i < rows * depth; i++)
        x[i] = normal() / sqrtf((float)depth);
    CHECK(from_f32(host, t, x, (size_t)(rows * depth)));
    for (int s = 0; s < SIDES; s++)
        OK(table[s]->weight(context[s], t, rows, depth, host, &r.p[s], e));
    free(x);
    free(host);
    return r;
}

/* A 4-bit linear of both. */
static void linear_of(const struct linear *l, struct cuda_w4 *w[SIDES])
{
    struct forge_w4a16_linear from = stored(l);

    BOTH(table[s]->linear(context[s], &from, &w[s], e));
}

/* The same with 4-bit weights: first, second, or both.  From five rows on the CPU
 * rounds them to bf16, the GPU from 385. */
static void test_codes_product(enum dtype t, enum forge_w4a16_layout layout,
                               int64_t rows, bool bias, int end)
{
    struct linear l = drawn((int)layout, layout, 256, 384, 64, false);
    struct twin x = elements(t, rows * l.i, .1f), w = weights_of(t, l.o, l.i);
    struct twin b = elements(DT_F32, l.o, 1);
    struct twin out = end == 1 ? elements(t, rows * l.o, 1) :
                                 poisoned((size_t)(rows * l.o) * item(t));
    struct cuda_w4 *codes[SIDES];
    bool turned = end == 3;

    linear_of(&l, codes);
    BOTH(table[s]->product(
        context[s],
        &(struct forward_product){ .dtype = t,
                                   .rows = rows,
                                   .n = l.o,
                                   .depth = l.i,
                                   .x = x.p[s],
                                   .w = turned ? w.p[s] : NULL,
                                   .codes = turned ? NULL : codes[s],
                                   .second = end == 2 ? w.p[s] : NULL,
                                   .second_codes =
                                       turned || end == 4 ? codes[s] : NULL,
                                   .bias = bias ? b.p[s] : NULL,
                                   .second_bias = bias ? b.p[s] : NULL,
                                   .out = out.p[s],
                                   .add = end == 1 },
        e));
    near("4-bit product", &out, t, t == DT_BF16 ? 0.03 : 2e-5,
         t == DT_BF16 ? 8e-3 : 1e-5);
    for (int s = 0; s < SIDES; s++)
        table[s]->drop(context[s], codes[s]);
    drop(&x);
    drop(&w);
    drop(&b);
    release(&l);
}

static void test_product(enum dtype t, int64_t rows, int64_t n, int64_t depth,
                         bool bias, int end)
{
    struct twin x = elements(t, rows * depth, 1);
    struct twin w = weights_of(t, n, depth), u = weights_of(t, n, depth);
    struct twin b = elements(DT_F32, n, 1), c = elements(DT_F32, n, 1);
    struct twin out = end == 1 ? elements(t, rows * n, 1) :
                                 poisoned((size_t)(rows * n) * item(t));

    BOTH(table[s]->product(
        context[s],
        &(struct forward_product){ .dtype = t,
                                   .rows = rows,
                                   .n = n,
                                   .depth = depth,
                                   .x = x.p[s],
                                   .w = w.p[s],
                                   .second = end == 2 ? u.p[s] : NULL,
                                   .bias = bias ? b.p[s] : NULL,
                                   .second_bias = bias ? c.p[s] : NULL,
                                   .out = out.p[s],
                                   .add = end == 1 },
        e));
    same("product", &out, t, false);
    drop(&x);
    drop(&w);
    drop(&u);
    drop(&b);
    drop(&c);
}

static void test_sums(enum dtype t, bool router, int64_t rows, int64_t all,
                      int64_t depth)
{
    struct twin x = elements(t, rows * depth, 1);
    struct twin w =
        router ? elements(DT_F32, all * depth, .1f) : weights_of(t, all, depth);
    int64_t first = router ? 0 : all / 2 / 32 * 32, n = all - first;
    int64_t ld = n + (router ? 0 : 5);
    float *y[SIDES];

    for (int s = 0; s < SIDES; s++) {
        y[s] = room((size_t)(rows * ld) * 4);
        for (int64_t i = 0; i < rows * ld; i++)
            y[s][i] = i % ld < n ? NAN : 0;
        OK(table[s]->sums(
            context[s],
            &(struct forward_sums){ .dtype = t,
                                    .weights = router ? DT_F32 : t,
                                    .rows = rows,
                                    .all = all,
                                    .depth = depth,
                                    .first = first,
                                    .n = n,
                                    .x = x.p[s],
                                    .w = w.p[s],
                                    .y = y[s],
                                    .ld = ld },
            e));
    }
    compare("sums", y[GPU], y[CPU], (size_t)(rows * ld), 1e-4, 1e-5);
    free(y[GPU]);
    free(y[CPU]);
    drop(&x);
    drop(&w);
}

static void test_elements(enum dtype t, int64_t rows, int64_t n)
{
    size_t bytes = (size_t)(rows * n) * item(t);
    struct twin a = elements(t, rows * n, 2), b = elements(t, rows * n, 2);
    struct twin bias = elements(DT_F32, n, 1),
                y = elements(DT_F32, rows * n, 1);
    struct twin gate = elements(DT_F32, n, .1f), out = poisoned(bytes);
    bool yes[SIDES];

    BOTH(table[s]->subtract(context[s],
                            &(struct forward_difference){ .dtype = t,
                                                          .rows = rows,
                                                          .n = n,
                                                          .a = a.p[s],
                                                          .b = b.p[s],
                                                          .to = out.p[s] },
                            e));
    same("subtract", &out, t, true);
    BOTH(table[s]->subtract(context[s],
                            &(struct forward_difference){ .dtype = t,
                                                          .rows = rows,
                                                          .n = n,
                                                          .a = a.p[s],
                                                          .b = b.p[s],
                                                          .bias = bias.p[s],
                                                          .to = b.p[s] },
                            e));
    BOTH(table[s]->add(context[s], t, b.p[s], y.p[s], rows * n, e));
    BOTH(table[s]->finite(context[s], t, b.p[s], rows * n, &yes[s], e));
    CHECK(yes[GPU] && yes[CPU]);
    BOTH(table[s]->gate(context[s],
                        &(struct forward_gate){ .dtype = t,
                                                .rows = rows,
                                                .n = n,
                                                .in = a.p[s],
                                                .y = a.p[s],
                                                .w = gate.p[s],
                                                .x = b.p[s] },
                        e));
    same("gate", &b, t, false);
    out = poisoned(item(t));
    BOTH(table[s]->copy(context[s],
                        (char *)a.p[s] + (size_t)(rows * n - 1) * item(t),
                        out.p[s], item(t), e));
    BOTH(table[s]->finite(context[s], t, a.p[s], rows * n, &yes[s], e));
    CHECK(!yes[GPU] && !yes[CPU]);
    drop(&a);
    drop(&bias);
    drop(&y);
    drop(&gate);
    drop(&out);
}

/* ---- experts ---- */

/* Each token at most once, in any order. */
static void test_rows(enum dtype t, int64_t tokens, int64_t top_k, int64_t n)
{
    int64_t rows = tokens * 2 / 3 + 1, *slot = room((size_t)rows * 8);
    struct twin from = elements(t, tokens * n, 1), there, s_slot, weight, sum;
    struct twin here = elements(t, tokens * n, 1), to, squares, target;
    struct forward_rows r[SIDES];
    double *q[SIDES];

    for (int64_t i = 0, k = 0; i < rows; i++, k++)
        slot[i] = (k * 7 % tokens) * top_k + (int64_t)(rnd() % (uint64_t)top_k);
    if (tokens % 7 == 0)
        rows = tokens / 7;
    s_slot = twin(slot, (size_t)rows * 8);
    weight = elements(DT_F32, tokens * top_k, 1);
    sum = elements(DT_F32, tokens * n, 1);
    to = poisoned((size_t)(rows * n) * item(t));
    target = poisoned((size_t)(rows * n) * item(t));
    there = elements(t, tokens * n, 1);
    squares = poisoned((size_t)rows * 8);
    for (int s = 0; s < SIDES; s++) {
        r[s] = (struct forward_rows){ t, rows, n, top_k, s_slot.p[s] };
        OK(table[s]->gather(context[s], &r[s], to.p[s], from.p[s], e));
        OK(table[s]->scatter(context[s], &r[s], sum.p[s], weight.p[s], to.p[s],
                             squares.p[s], e));
        OK(table[s]->add_share(context[s], &r[s], target.p[s], to.p[s],
                               weight.p[s], there.p[s], here.p[s], e));
        q[s] = room((size_t)rows * 8);
        OK(table[s]->get(context[s], q[s], squares.p[s], (size_t)rows * 8, e));
    }
    for (int64_t i = 0; i < rows; i++)
        CHECK(fabs(q[GPU][i] - q[CPU][i]) <= 1e-9 * q[CPU][i]);
    same("gather", &to, t, true);
    same("scatter", &sum, DT_F32, true);
    same("add_share", &target, t, true);
    drop(&from);
    drop(&there);
    drop(&here);
    drop(&s_slot);
    drop(&weight);
    drop(&squares);
    free(q[GPU]);
    free(q[CPU]);
    free(slot);
}

/* ---- attention ---- */

struct heads {
    int64_t heads, kv, dim, v_dim, window, rotary, tail, pad;
    bool pairs, norm;
};

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
    int64_t first[64] = { 0 }, rows = 0, longest = 0, own = h->dim - h->tail;
    int64_t kv_row = h->tail ? h->heads * (own + h->v_dim) : h->kv * h->dim;
    struct twin q, k, v, tail, cs, qn, kn, out;

    for (int64_t i = 0; i < n; i++) {
        rows = first[i + 1] = first[i] + length[i];
        longest = length[i] > longest ? length[i] : longest;
    }
    q = elements(t, rows * h->heads * h->dim, 1);
    k = elements(t, rows * kv_row, 1);
    v = elements(t, rows * h->kv * h->v_dim, 1);
    tail = elements(t, rows * (h->pad + h->tail) + 8, 1);
    cs = elements(DT_F32, longest * h->rotary + 8, .7f);
    qn = elements(DT_F32, h->dim, 1);
    kn = elements(DT_F32, h->dim, 1);
    out = poisoned((size_t)(rows * h->heads * h->v_dim) * item(t));
    for (int s = 0; s < SIDES; s++) {
        struct forward_attend a = {
            .dtype = t,
            .rows = rows,
            .n_sequences = n,
            .first = first,
            .n_heads = h->heads,
            .n_kv_heads = h->kv,
            .head_dim = h->dim,
            .v_dim = h->v_dim,
            .window = h->window,
            .scale = 1 / sqrtf((float)h->dim),
            .eps = 1e-6f,
            .q_norm = h->norm ? qn.p[s] : NULL,
            .k_norm = h->norm ? kn.p[s] : NULL,
            .rotary_at = h->tail ? own : 0,
            .rotary = h->rotary,
            .pairs = h->pairs,
            .cs = cs.p[s],
            .q = { q.p[s], h->heads * h->dim, h->dim },
            .k = { k.p[s], kv_row, h->dim },
            .v = { v.p[s], h->kv * h->v_dim, h->v_dim },
            .out = out.p[s],
        };

        if (h->tail) {
            a.k.head = own + h->v_dim;
            a.v =
                (struct forward_heads){ (char *)k.p[s] + (size_t)own * item(t),
                                        kv_row, own + h->v_dim };
            a.tail = (struct forward_heads){ (char *)tail.p[s] +
                                                 (size_t)h->pad * item(t),
                                             h->pad + h->tail, 0 };
            a.tail_dim = h->tail;
        }
        attend_in_parts(s, a, past, (size_t)(h->heads * h->dim) * item(t),
                        (size_t)(h->heads * h->v_dim) * item(t));
    }
    same("attend", &out, t, false);
    drop(&q);
    drop(&k);
    drop(&v);
    drop(&tail);
    drop(&cs);
    drop(&qn);
    drop(&kn);
}

static void test_attention(enum dtype t)
{
    static const int64_t ragged[] = { 1, 65, 64, 3, 200, 129, 128, 300 };
    static const int64_t one[] = { 517 };
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
        { .heads = 3,
          .kv = 3,
          .dim = 20,
          .v_dim = 20,
          .rotary = 10,
          .norm = true },
        { .heads = 2, .kv = 1, .dim = 256, .v_dim = 256, .rotary = 256 },
        { .heads = 2,
          .kv = 1,
          .dim = 96,
          .v_dim = 96,
          .rotary = 96,
          .pairs = true },
        { .heads = 1, .kv = 1, .dim = 320, .v_dim = 320, .rotary = 320 },
    };

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        test_attend(t, &all[i], ragged, ARRAY_LEN(ragged), 0);
        for (int64_t past = 0; past < one[0]; past = past * 5 + 1)
            test_attend(t, &all[i], one, 1, past);
        test_attend(t, &all[i], one, 1, one[0] - 1);
    }
}

/* Weights from codes: quant.h's values, to the bit. */
static void test_codes(enum dtype t, enum dtype scale, int64_t rows,
                       int64_t depth, uint64_t group)
{
    size_t n = (size_t)depth, groups = quant_groups(n, group);
    size_t bytes = (size_t)rows * n * item(t);
    uint8_t *nibbles = room((size_t)rows * n / 2), *code = room(n);
    uint32_t *meta = room((size_t)rows * groups * 4);
    float *row = room(n * sizeof(*row));
    char *want = room(bytes), *got = room(bytes);
    struct forward_codes a = { t, scale, rows, depth, group, nibbles, meta };
    void *w;

    for (size_t i = 0; i < (size_t)rows * n / 2; i++)
        nibbles[i] = (uint8_t)rnd();
    for (size_t i = 0; i < (size_t)rows * groups; i++) {
        meta[i] = quant_meta(expf(normal() - 4), (int)(rnd() % 16), rnd() % 2,
                             4, scale);
        if (quant_is_symmetric(meta[i]) && rnd() % 2)
            meta[i] = quant_negative(meta[i]);
    }
    for (size_t r = 0; r < (size_t)rows; r++) {
        quant_unpack_row(code, nibbles + r * n / 2, n, 4);
        quant_dequantize_row(row, code, n, meta + r * groups, group, scale);
        CHECK(from_f32(want + r * n * item(t), t, row, n));
    }
    OK(table[GPU]->codes(gpu, &a, &w, e));
    OK(table[GPU]->get(gpu, got, w, bytes, e));
    CHECK(!memcmp(got, want, bytes));
    table[GPU]->release(gpu, w);
    free(nibbles);
    free(code);
    free(meta);
    free(row);
    free(want);
    free(got);
}

static void open_side(int s, const char *path)
{
    struct plugin_table own = { DEVICE_TABLE, DEVICE_TABLE_VERSION, NULL };
    struct plugin_table stage = { FORWARD_TABLE, FORWARD_TABLE_VERSION, NULL };

    OK(plugin_load(&own, path, e));
    OK(plugin_load(&stage, path, e));
    table[s] = stage.functions;
    context[s] = gpu;
    if (s == CPU)
        OK(((const struct device_table *)own.functions)
               ->open(&context[s], 0, 0, e));
}

int main(int argc, char **argv)
{
    struct plugin_table stage = { FORWARD_TABLE, FORWARD_TABLE_VERSION, NULL };
    char path[PATH_MAX], dir[PATH_MAX / 2];

    gpu_open(argc, argv, &stage);
    snprintf(dir, sizeof(dir), "%s", argv[0]);
    dirname(dir);
    snprintf(path, sizeof(path), "%s/../helper/forge-cuda.so", dir);
    if (access(path, R_OK))
        snprintf(path, sizeof(path), "%s/fake-cuda.so", dir);
    open_side(GPU, argv[1]);
    open_side(CPU, path);
    for (int i = 0; i < 2; i++) {
        enum dtype t = i ? DT_F32 : DT_BF16;

        test_codes(t, DT_F16, 129, 4096, 128);
        test_codes(t, DT_BF16, 3, 104, 32);
        test_norm(t, 70, 4096, 4096);
        test_norm(t, 33, 512, 576);
        test_norm(t, 5, 37, 41);
        test_elements(t, 50, 1024);
        test_elements(t, 7, 333);
        test_rows(t, 100, 8, 512);
        test_rows(t, 31, 3, 75);
        for (int end = 0; end < 3; end++)
            for (int bias = 0; bias < 2; bias++) {
                test_product(t, 300, 256, 512, bias, end);
                test_product(t, 65, 40, 24, bias, end);
                test_product(t, 1, 75, 37, bias, end);
            }
        for (int end = 0; end < 5; end++)
            for (int layout = 0; layout < 4; layout++)
                test_codes_product(t, (enum forge_w4a16_layout)layout,
                                   (int[]){ 1, 3, 40, 500 }[(layout + end) % 4],
                                   layout % 2, end);
        for (int router = 0; router < 2; router++) {
            test_sums(t, router, 300, 256, 512);
            test_sums(t, router, 11, 70, 48);
        }
        test_attention(t);
        printf("%s: largest norm of a difference %.2g of the result's\n",
               dtype_name(t), wrong);
        wrong = 0;
    }
    return 0;
}
