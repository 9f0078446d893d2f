/* test_gpu_forward - norms, products, sums, what is done to elements, and rows of
 * experts on the GPU: PROGRAM PLUG-IN [SEED]. */
#include "twins.h"

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

static void test_product(enum dtype t, int64_t rows, int64_t n, int64_t depth,
                         bool bias, int end, enum activation act)
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
                                   .add = end == 1,
                                   .gating = { act, 1.7f, 1 } },
        e));
    same("product", &out, t, false);
    drop(&x);
    drop(&w);
    drop(&u);
    drop(&b);
    drop(&c);
}

/* Of gate and up in one linear: u behind g. */
static void test_pair(enum dtype t, int64_t rows, int64_t n,
                      enum activation act)
{
    struct twin g = elements(t, rows * 2 * n, 1);
    struct twin out = poisoned((size_t)(rows * n) * item(t));

    BOTH(table[s]->pair(
        context[s],
        &(struct forward_pair){ .dtype = t,
                                .rows = rows,
                                .n = n,
                                .g = g.p[s],
                                .u = (char *)g.p[s] + (size_t)n * item(t),
                                .ldg = 2 * n,
                                .ldu = 2 * n,
                                .gating = { act, 1.7f, 1 },
                                .out = out.p[s] },
        e));
    same("pair", &out, t, false);
    drop(&g);
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

static void check_finite(const struct twin *x, enum dtype t, int64_t n,
                         bool finite)
{
    bool yes[SIDES];

    BOTH(table[s]->finite(context[s], t, x->p[s], n, &yes[s], e));
    CHECK(yes[GPU] == finite && yes[CPU] == finite);
}

static void test_elements(enum dtype t, int64_t rows, int64_t n)
{
    size_t bytes = (size_t)(rows * n) * item(t);
    struct twin a = elements(t, rows * n, 2), b = elements(t, rows * n, 2);
    struct twin bias = elements(DT_F32, n, 1),
                y = elements(DT_F32, rows * n, 1);
    struct twin gate = elements(DT_F32, n, .1f), out = poisoned(bytes);

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
    check_finite(&b, t, rows * n, true);
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
    b = elements(t, rows * n, 2);
    BOTH(table[s]->add_times(context[s],
                             &(struct forward_add_times){ .dtype = t,
                                                          .factor = .22f,
                                                          .rows = rows,
                                                          .n = n,
                                                          .ld = n,
                                                          .x = b.p[s],
                                                          .y = a.p[s] },
                             e));
    same("add_times", &b, t, true);
    b = poisoned((size_t)rows * 2 * item(t));
    BOTH(table[s]->copy_rows(context[s], b.p[s], 2 * item(t), a.p[s],
                             (size_t)n * item(t), 2 * item(t), rows, e));
    same("copy_rows", &b, t, true);
    out = poisoned(item(t));
    BOTH(table[s]->copy(context[s],
                        (char *)a.p[s] + (size_t)(rows * n - 1) * item(t),
                        out.p[s], item(t), e));
    check_finite(&a, t, rows * n, false);
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
    struct twin here = elements(t, tokens * n, 1), to, squares, target, by;
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
    by = poisoned((size_t)(rows * n) * item(t));
    there = elements(t, tokens * n, 1);
    squares = poisoned((size_t)rows * 8);
    for (int s = 0; s < SIDES; s++) {
        r[s] = (struct forward_rows){ .dtype = t,
                                      .rows = rows,
                                      .n = n,
                                      .top_k = top_k,
                                      .slot = s_slot.p[s] };
        OK(table[s]->gather(context[s], &r[s], to.p[s], from.p[s], e));
        OK(table[s]->scatter(context[s], &r[s], sum.p[s], weight.p[s], to.p[s],
                             squares.p[s], e));
        OK(table[s]->add_share(context[s], &r[s], target.p[s], to.p[s],
                               weight.p[s], there.p[s], here.p[s], e));
        r[s].by = weight.p[s];
        OK(table[s]->gather(context[s], &r[s], by.p[s], from.p[s], e));
        q[s] = room((size_t)rows * 8);
        OK(table[s]->get(context[s], q[s], squares.p[s], (size_t)rows * 8, e));
    }
    for (int64_t i = 0; i < rows; i++)
        CHECK(fabs(q[GPU][i] - q[CPU][i]) <= 1e-9 * q[CPU][i]);
    same("gather", &to, t, true);
    same("gather times", &by, t, true);
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

int main(int argc, char **argv)
{
    twins_open(argc, argv);
    for (int i = 0; i < 2; i++) {
        enum dtype t = i ? DT_F32 : DT_BF16;

        test_norm(t, 70, 4096, 4096);
        test_norm(t, 33, 512, 576);
        test_norm(t, 5, 37, 41);
        test_elements(t, 50, 1024);
        test_elements(t, 7, 333);
        test_rows(t, 100, 8, 512);
        test_rows(t, 31, 3, 75);
        for (int end = 0; end < 3; end++)
            for (int bias = 0; bias < 2; bias++) {
                test_product(t, 300, 256, 512, bias, end, ACT_SILU);
                test_product(t, 65, 40, 24, bias, end, ACT_SILU);
                test_product(t, 1, 75, 37, bias, end, ACT_SILU);
            }
        for (int act = ACT_SILU; act <= ACT_CLAMPED; act++) {
            test_product(t, 300, 256, 512, true, 2, act);
            test_product(t, 65, 40, 24, false, 2, act);
            test_pair(t, 300, 256, act);
            test_pair(t, 7, 37, act);
        }
        for (int router = 0; router < 2; router++) {
            test_sums(t, router, 300, 256, 512);
            test_sums(t, router, 11, 70, 48);
        }
        report(t);
    }
    return 0;
}
