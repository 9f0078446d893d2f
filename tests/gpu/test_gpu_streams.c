/* test_gpu_streams - what several residual streams need of the forward pass on the GPU:
 * PROGRAM PLUG-IN [SEED]. */
#include "twins.h"

struct shape {
    int64_t rows, width, n, active,
        gap; /* gap: elements behind a row's streams */
};

/* By what a token's numbers are weighted. */
struct weights {
    struct twin router, predict, correct, scale;
};

static struct weights weights_for(const struct shape *h)
{
    float even = 1 / sqrtf((float)h->width);

    return (struct weights){
        .router = elements(DT_F32, h->n * h->width, even),
        .predict = elements(DT_F32, h->n * h->n * h->n, .5f),
        .correct = elements(DT_F32, h->n * h->n, .5f),
        .scale = elements(DT_F32, h->width, 1),
    };
}

static struct forward_streams call_of(int s, enum dtype t,
                                      const struct shape *h,
                                      const struct weights *w,
                                      const struct twin *x)
{
    return (struct forward_streams){ .dtype = t,
                                     .rows = h->rows,
                                     .width = h->width,
                                     .ld = (h->n + 1) * h->width + h->gap,
                                     .n = h->n,
                                     .active = h->active,
                                     .eps = 1e-6,
                                     .x = x->p[s],
                                     .router = w->router.p[s] };
}

static struct twin rows_for(enum dtype t, const struct shape *h)
{
    return elements(t, h->rows * ((h->n + 1) * h->width + h->gap), 1);
}

/* out NULL: in place. */
static void test_predict(enum dtype t, const struct shape *h,
                         const struct weights *w, bool in_place)
{
    struct twin x = rows_for(t, h);
    struct twin out = poisoned((size_t)(h->rows * h->width) * item(t));

    for (int s = 0; s < SIDES; s++) {
        struct forward_streams a = call_of(s, t, h, w, &x);

        a.by = w->predict.p[s];
        a.out = in_place ? NULL : out.p[s];
        OK(table[s]->predict(context[s], &a, e));
    }
    if (in_place)
        drop(&out);
    else
        same("predict: the active stream", &out, t, false);
    same("predict: streams", &x, t, false);
}

static void test_join(enum dtype t, const struct shape *h,
                      const struct weights *w)
{
    struct twin x = rows_for(t, h);
    struct twin a = elements(t, h->rows * h->width, 1);
    struct twin b = elements(t, h->rows * h->width, 1);

    for (int s = 0; s < SIDES; s++) {
        struct forward_streams j = call_of(s, t, h, w, &x);

        j.a = a.p[s];
        j.b = b.p[s];
        OK(table[s]->join(context[s], &j, e));
    }
    same("join", &x, t, true);
    drop(&a);
    drop(&b);
}

static void test_correct(enum dtype t, const struct shape *h,
                         const struct weights *w, bool scaled)
{
    struct twin x = rows_for(t, h);
    struct twin out = poisoned((size_t)(h->rows * h->width) * item(t));

    for (int s = 0; s < SIDES; s++) {
        struct forward_streams a = call_of(s, t, h, w, &x);

        a.by = w->correct.p[s];
        a.scale = scaled ? w->scale.p[s] : NULL;
        a.out = out.p[s];
        OK(table[s]->correct(context[s], &a, e));
    }
    same("correct: the active stream", &out, t, false);
    same("correct: streams", &x, t, false);
}

static void test_streams(enum dtype t, const struct shape *h)
{
    struct weights w = weights_for(h);

    test_predict(t, h, &w, false);
    test_predict(t, h, &w, true);
    test_join(t, h, &w);
    test_correct(t, h, &w, false);
    test_correct(t, h, &w, true);
    drop(&w.router);
    drop(&w.predict);
    drop(&w.correct);
    drop(&w.scale);
}

/* An output next to the threshold may be 0 on one side, and then is next to 0 on the
 * other. */
static void test_sparsify(enum dtype t, int64_t rows, int64_t n, double cutoff)
{
    struct twin g = elements(t, rows * n, 1);

    BOTH(table[s]->sparsify(context[s], t, cutoff, g.p[s], rows, n, e));
    same("sparsify", &g, t, false);
}

static void test_add_times(enum dtype t, int64_t rows, int64_t n, int64_t ld)
{
    struct twin x = elements(t, rows * ld, 1), y = elements(t, rows * n, 1);

    BOTH(table[s]->add_times(context[s],
                             &(struct forward_add_times){ .dtype = t,
                                                          .factor = .7f,
                                                          .rows = rows,
                                                          .n = n,
                                                          .ld = ld,
                                                          .x = x.p[s],
                                                          .y = y.p[s] },
                             e));
    same("add_times", &x, t, true);
    drop(&y);
}

int main(int argc, char **argv)
{
    static const struct shape all[] = {
        { 70, 2048, 4, 0, 96 }, /* Gemma 3n's */
        { 9, 48, 3, 1, 7 },     { 5, 37, 1, 0, 0 },
        { 3, 300, 9, 8, 1 },    { 2, 33, ALTUP_STREAMS, 5, 3 },
    };

    twins_open(argc, argv);
    for (int i = 0; i < 2; i++) {
        enum dtype t = i ? DT_F32 : DT_BF16;

        for (size_t k = 0; k < ARRAY_LEN(all); k++)
            test_streams(t, &all[k]);
        test_sparsify(t, 70, 16384, 1.6);
        test_sparsify(t, 3, 80, -.5);
        test_add_times(t, 70, 1024, 1024);
        test_add_times(t, 9, 37, 41);
        report(t);
    }
    return 0;
}
