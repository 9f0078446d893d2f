/* Products with 4-bit linears on the GPU: all layouts, groups, zeros, act-order,
 * types, ragged shapes, numbers of rows and experts, against products in double;
 * outputs are poisoned, and equal calls give equal bytes. */
#include <dlfcn.h>

#include "gpu.h"

#include "../unit/w4_linear.h"
#include "forge_w4a16_cuda.h"
#include "model/forward_table.h"

static struct plugin_table memory = { FORWARD_TABLE, FORWARD_TABLE_VERSION,
                                      NULL };
static struct forge_w4a16_cuda *context;
static char why[200];
/* Elements behind the outputs in a row of y: 8 let a row's begin at 16 bytes. */
static int64_t spare = SPARE;
/* forge_w4a16_cuda.h's functions, of the plug-in that is named. */
static struct {
    int (*open)(struct forge_w4a16_cuda **, int, void *, char *, size_t);
    int (*prepare)(struct forge_w4a16_cuda *, struct forge_w4a16_cuda_linear **,
                   const struct forge_w4a16_linear *, char *, size_t);
    void (*release)(struct forge_w4a16_cuda_linear *);
    size_t (*memory)(const struct forge_w4a16_cuda_linear *);
    int (*multiply)(struct forge_w4a16_cuda *,
                    const struct forge_w4a16_cuda_linear *,
                    const struct forge_w4a16_rows *, int64_t,
                    const struct forge_w4a16_rows *, char *, size_t);
    int (*grouped)(struct forge_w4a16_cuda *,
                   const struct forge_w4a16_cuda_linear *const *,
                   const int64_t *, int64_t, const struct forge_w4a16_rows *,
                   const struct forge_w4a16_rows *, char *, size_t);
    int (*wait)(struct forge_w4a16_cuda *, char *, size_t);
} w4;

/* Fail with the reason. */
#define W4(call)                                                               \
    do {                                                                       \
        if ((call) != 0) {                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, why);           \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static void find(void *so, const char *name, void *to)
{
    void *p = dlsym(so, name);

    CHECK(p);
    memcpy(to, &p, sizeof(p));
}

static void open_w4(const char *path)
{
    void *so = dlopen(path, RTLD_NOW);

    CHECK(so);
    find(so, "forge_w4a16_cuda_open", &w4.open);
    find(so, "forge_w4a16_cuda_prepare", &w4.prepare);
    find(so, "forge_w4a16_cuda_release", &w4.release);
    find(so, "forge_w4a16_cuda_memory", &w4.memory);
    find(so, "forge_w4a16_cuda_multiply", &w4.multiply);
    find(so, "forge_w4a16_cuda_grouped", &w4.grouped);
    find(so, "forge_w4a16_cuda_wait", &w4.wait);
    W4(w4.open(&context, 0, NULL, why, sizeof(why)));
}

static const struct forward_table *on(void)
{
    return memory.functions;
}

static void *to_device(const void *host, size_t n)
{
    bool spilled;
    void *p;

    OK(on()->alloc(gpu, &p, n, false, &spilled, e));
    OK(on()->put(gpu, p, host, n, e));
    return p;
}

static size_t size_of(enum forge_w4a16_type t)
{
    return t == FORGE_W4A16_F32 ? 4 : 2;
}

/* The host's tensors, or with there == true copies on the device. */
static struct forge_w4a16_cuda_linear *prepare(const struct w4_linear *l,
                                               bool there)
{
    struct forge_w4a16_linear from = stored(l);
    size_t words = (size_t)((l->o + 7) / 8), wide = (size_t)((l->i + 7) / 8);
    size_t groups = (size_t)l->groups, o = (size_t)l->o;
    void *copy[3] = { NULL };
    struct forge_w4a16_cuda_linear *w;

    if (there) {
        copy[0] = to_device(l->words, 4 * (l->layout == FORGE_W4A16_AWQ ?
                                               (size_t)l->i * words :
                                               wide * o));
        copy[1] = to_device(l->stored, o * groups * size_of(l->scales));
        copy[2] = to_device(l->zwords, 4 * words * groups);
        from.codes = copy[0];
        from.scales = copy[1];
        from.zeros = l->zeros ? copy[2] : NULL;
    }
    OK(device->settle(gpu, e));
    W4(w4.prepare(context, &w, &from, why, sizeof(why)));
    CHECK(w4.memory(w) >= (size_t)(l->o * l->i) / 2);
    for (int i = 0; i < 3; i++)
        on()->release(gpu, copy[i]);
    return w;
}

/* Tensor cores add in f32 without rounding to nearest: the worst of 3,328 inputs is
 * 1.2e-5 to 1.8e-5. */
static const double BOUND = 4e-5;

/* y [m, o + spare] of a type, from NaN. */
static void *multiply(const struct forge_w4a16_cuda_linear *const *w,
                      const int64_t *first, int64_t experts,
                      const struct rows *x, int64_t o,
                      enum forge_w4a16_type type)
{
    size_t n = (size_t)(x->m * (o + spare)) * size_of(type);
    size_t in = (size_t)(x->m * x->ld) * size_of(x->type);
    unsigned char *y = malloc(n + 1);
    struct forge_w4a16_rows from = { x->type, to_device(x->p, in), x->ld };
    struct forge_w4a16_rows to = { type, NULL, o + spare };

    memset(y, 0xff, n);
    to.p = to_device(y, n);
    OK(device->settle(gpu, e));
    if (experts == 1)
        W4(w4.multiply(context, *w, &from, x->m, &to, why, sizeof(why)));
    else
        W4(w4.grouped(context, w, first, experts, &from, &to, why,
                      sizeof(why)));
    W4(w4.wait(context, why, sizeof(why)));
    OK(on()->get(gpu, y, to.p, n, e));
    on()->release(gpu, to.p);
    on()->release(gpu, from.p);
    for (int64_t r = 0; r < x->m; r++) /* what is no output's stays */
        for (size_t c = (size_t)o * size_of(type);
             c < (size_t)(o + spare) * size_of(type); c++)
            CHECK(y[(size_t)(r * (o + spare)) * size_of(type) + c] == 0xff);
    return y;
}

/* The worst of rows first..first+n-1 of y, in units of the size of the terms.  rounded:
 * weights are of that type, DT_NONE: exact. */
static double worst_of(const struct w4_linear *l, const struct rows *x,
                       int64_t first, int64_t n, const float *y,
                       enum dtype rounded)
{
    double worst = 0;

    for (int64_t r = first; r < first + n; r += 1 + (r - first) / 5)
        for (int64_t o = 0; o < l->o; o += 1 + (l->o > 300 ? o % 7 : 0)) {
            double sum = 0, size = 0, far;

            for (int64_t k = 0; k < l->i; k++) {
                float w = (float)l->w[o * l->i + k];
                uint16_t h;
                double t;

                if (rounded) {
                    CHECK(from_f32(&h, rounded, &w, 1));
                    CHECK(to_f32(&w, &h, rounded, 1));
                }
                t = (rounded ? (double)w : l->w[o * l->i + k]) *
                    (double)x->value[r * x->ld + k];
                sum += t;
                size += t * t;
            }
            far = fabs((double)y[r * (l->o + spare) + o] - sum) /
                  (0.05 + sqrt(size));
            worst = far <= worst ? worst : far; /* NaN stays */
        }
    return worst;
}

/* rounded: weights may be of that type instead of exact. */
static void compare(const struct w4_linear *l, const struct rows *x,
                    int64_t first, int64_t n, const float *y,
                    enum dtype rounded)
{
    double worst = worst_of(l, x, first, n, y, DT_NONE);

    if (rounded && !(worst < BOUND))
        worst = worst_of(l, x, first, n, y, rounded);

    if (!(worst < BOUND))
        fprintf(stderr, "rows %lld to %lld: error %g\n", (long long)first,
                (long long)(first + n - 1), worst);
    CHECK(worst < BOUND);
    if (n > 64)
        printf("  %lld rows: error %.1e\n", (long long)n, worst);
}

/* y in 16 bits is y in f32, rounded; cuBLAS may sum in another order then. */
static void narrow(const void *y, const float *want, const struct rows *x,
                   int64_t o, enum forge_w4a16_type type, bool exactly)
{
    for (int64_t r = 0; r < x->m; r++)
        for (int64_t c = 0; c < o; c++) {
            int64_t at = r * (o + spare) + c;
            uint16_t half;
            float v;

            CHECK(from_f32(&half, (enum dtype)type, want + at, 1));
            if (exactly)
                CHECK(((const uint16_t *)y)[at] == half);
            CHECK(to_f32(&v, (const uint16_t *)y + at, (enum dtype)type, 1));
            CHECK(fabsf(v - want[at]) < 0.01f * fabsf(want[at]) + 0.001f);
        }
}

static void product(struct w4_linear *l, int64_t m, enum forge_w4a16_type type,
                    bool there)
{
    const int64_t first[2] = { 0, m };
    struct rows x = { .type = type, .m = m };
    const struct forge_w4a16_cuda_linear *w = prepare(l, there);
    enum dtype rounded = m > FORGE_W4A16_CUDA_EXACT &&
                                 type != FORGE_W4A16_F32 &&
                                 (m > 384 || l->scales != FORGE_W4A16_F32) ?
                             (enum dtype)type :
                             DT_NONE;
    size_t n;
    float *y, *again;

    spare = spare == 8 ? SPARE : 8;
    n = (size_t)(m * (l->o + spare));
    fill(&x, l->i);
    y = multiply(&w, first, 1, &x, l->o, FORGE_W4A16_F32);
    again = multiply(&w, first, 1, &x, l->o, FORGE_W4A16_F32);
    CHECK(!memcmp(y, again, n * sizeof(*y)));
    compare(l, &x, 0, m, y, rounded);
    free(again);
    for (int t = FORGE_W4A16_F16; t <= FORGE_W4A16_BF16; t++) {
        void *h = multiply(&w, first, 1, &x, l->o, (enum forge_w4a16_type)t);

        narrow(h, y, &x, l->o, (enum forge_w4a16_type)t, !rounded);
        free(h);
    }
    free(y);
    free(x.p);
    free(x.value);
    w4.release((struct forge_w4a16_cuda_linear *)(uintptr_t)w);
}

static void one(enum forge_w4a16_layout layout, int64_t o, int64_t i,
                int64_t group, bool act_order)
{
    static const int64_t rows[] = { 1,  3,  8,  9,   16,  17,
                                    40, 64, 65, 100, 150, 250 };
    static const enum forge_w4a16_type type[] = {
        FORGE_W4A16_BF16, FORGE_W4A16_F32, FORGE_W4A16_F16, FORGE_W4A16_F16,
        FORGE_W4A16_BF16
    };
    static int turn;

    printf("layout %d, %lld x %lld, groups of %lld%s\n", (int)layout,
           (long long)i, (long long)o, (long long)group,
           act_order ? ", act-order" : "");
    for (int n = 0; n < 4; n++, turn++) {
        /* types and numbers of rows take turns */
        struct w4_linear l = drawn(turn, layout, o, i, group, act_order);

        product(&l, rows[turn % (int)ARRAY_LEN(rows)],
                type[turn % (int)ARRAY_LEN(type)], turn % 3);
        release(&l);
    }
}

/* More rows than exact weights are for; of f32 by cuBLAS, in slabs. */
static void test_many(void)
{
    for (int i = 0; i < 4; i++) {
        struct w4_linear l = { .layout = (enum forge_w4a16_layout)i,
                               .o = 264,
                               .i = i % 2 ? 336 : 1000,
                               .group = i ? 48 << (i % 2) : 128,
                               .zeros = true,
                               .scales = FORGE_W4A16_F16,
                               .g_idx = NULL };

        if (i >= FORGE_W4A16_GPTQ)
            l.g_idx = shuffled(l.i, l.group);
        make(&l);
        product(&l, 387,
                i == 2 ? FORGE_W4A16_F32 :
                i % 2  ? FORGE_W4A16_F16 :
                         FORGE_W4A16_BF16,
                true);
        release(&l);
    }
}

/* More tiles than there are multiprocessors of Hopper, so that some are whole and some
 * are divided; scales of x's type, and of the other. */
static void test_tiles(void)
{
    for (int i = 0; i < 2; i++) {
        struct w4_linear l = { .layout = FORGE_W4A16_COMPRESSED_TENSORS,
                               .o = 520,
                               .i = 3328,
                               .group = 128,
                               .zeros = true,
                               .scales = i ? FORGE_W4A16_BF16 : FORGE_W4A16_F16,
                               .g_idx = NULL };

        make(&l);
        for (int k = 0; k < 2; k++) /* both places of y's rows */
            product(&l, 5888 - 40, FORGE_W4A16_BF16, true);
        release(&l);
    }
}

/* How tiles of few rows are divided on Hopper: one for each cluster, of 128 outputs and
 * of 256; so many steps that blocks of threads without clusters share them; one for each
 * block. */
static void test_few(void)
{
    static const struct shape shapes[] = {
        { 1032, 2048, 128 },         { 24 * 256, 1024, 32 },
        { 13 * 256, 82 * 128, 128 }, { 70 * 256, 2048, 128 },
        { 75 * 256, 2048, 64 },      { 110 * 256, 512, 128 }
    };
    static const int64_t rows[] = { 12, 30, FORGE_W4A16_CUDA_EXACT, 5 };

    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        const struct shape *s = &shapes[i];
        struct w4_linear l = { .layout = FORGE_W4A16_AWQ,
                               .o = s->o,
                               .i = s->i,
                               .group = s->group,
                               .zeros = true,
                               .scales = FORGE_W4A16_F16,
                               .g_idx = NULL };

        make(&l);
        for (size_t k = 0; k < ARRAY_LEN(rows); k++)
            product(&l, rows[k], k % 2 ? FORGE_W4A16_F16 : FORGE_W4A16_BF16,
                    true);
        release(&l);
    }
}

/* Rows of bf16 that become f16, on Hopper: of all sizes, zeros, an infinite one; where
 * they lie, or copied. */
static void halves(const struct w4_linear *l, int64_t ld)
{
    enum { ZEROS = 1098, INFINITE, M };
    const struct forge_w4a16_cuda_linear *w = prepare(l, false);
    struct rows x = { .type = FORGE_W4A16_BF16, .m = M };
    const int64_t first[2] = { 0, M };
    float *y;

    fill(&x, l->i);
    x.ld = ld;
    for (int64_t i = 0; i < M * ld; i++) {
        int64_t r = i / ld, k = i % ld;
        float v = r == ZEROS ? 0 :
                  r == INFINITE && k == 3 ?
                               INFINITY :
                               ldexpf(x.value[i], (int)(r % 100 - k % 30));

        set_value(&x, i, v);
    }
    y = multiply(&w, first, 1, &x, l->o, FORGE_W4A16_F32);
    CHECK(worst_of(l, &x, 0, ZEROS, y, DT_F16) < BOUND ||
          worst_of(l, &x, 0, ZEROS, y, DT_BF16) < BOUND);
    for (int64_t o = 0; o < l->o; o++) {
        CHECK(y[ZEROS * (l->o + spare) + o] == 0);
        CHECK(!isfinite(y[INFINITE * (l->o + spare) + o]));
    }
    free(y);
    free(x.p);
    free(x.value);
    w4.release((struct forge_w4a16_cuda_linear *)(uintptr_t)w);
}

static void test_halves(void)
{
    struct w4_linear l = { .layout = FORGE_W4A16_AWQ,
                           .o = 16384 + 8,
                           .i = 256,
                           .group = 128,
                           .zeros = true,
                           .scales = FORGE_W4A16_F16,
                           .g_idx = NULL };

    make(&l);
    halves(&l, l.i);
    halves(&l, l.i + SPARE);
    release(&l);
}

/* ---- experts ---- */

enum { EXPERTS = 9 };

static void grouped(const int64_t *first, enum forge_w4a16_type type,
                    bool act_order)
{
    enum { O = 328, I = 512 };
    struct rows x = { .type = type, .m = first[EXPERTS] };
    struct w4_linear l[EXPERTS];
    const struct forge_w4a16_cuda_linear *w[EXPERTS] = { NULL };
    int64_t active = 0;
    float *y, *again;

    fill(&x, I);
    for (int i = 0; i < EXPERTS; i++) {
        bool used = first[i + 1] > first[i];

        active += used;
        l[i] =
            (struct w4_linear){ .layout = act_order ?
                                              FORGE_W4A16_GPTQ :
                                              (enum forge_w4a16_layout)(i % 4),
                                .o = O,
                                .i = I,
                                .group = 64,
                                .zeros = i % 2,
                                .scales = FORGE_W4A16_BF16,
                                .g_idx = act_order ? shuffled(I, 64) : NULL };
        make(&l[i]);
        w[i] = used ? prepare(&l[i], i % 2) : NULL;
    }
    y = multiply(w, first, EXPERTS, &x, O, FORGE_W4A16_F32);
    again = multiply(w, first, EXPERTS, &x, O, FORGE_W4A16_F32);
    CHECK(!memcmp(y, again, (size_t)(x.m * (O + spare)) * sizeof(*y)));
    for (int i = 0; i < EXPERTS; i++) {
        compare(&l[i], &x, first[i], first[i + 1] - first[i], y,
                x.m > FORGE_W4A16_CUDA_EXACT * active ? (enum dtype)type :
                                                        DT_NONE);
        w4.release((struct forge_w4a16_cuda_linear *)(uintptr_t)w[i]);
        release(&l[i]);
    }
    free(y);
    free(again);
    free(x.p);
    free(x.value);
}

static void test_grouped(void)
{
    static const int64_t few[] = { 0, 1, 1, 2, 3, 3, 4, 4, 5, 6 };
    static const int64_t ragged[] = { 0,   17,  17,  18,  118,
                                      120, 121, 190, 200, 200 };
    static const int64_t single[] = { 0, 0, 0, 0, 0, 40, 40, 40, 40, 40 };
    static const int64_t many[] = {
        0, 0, 500, 500, 500, 500, 800, 800, 800, 800
    };

    printf("experts\n");
    grouped(few, FORGE_W4A16_BF16, false);
    grouped(ragged, FORGE_W4A16_F16, false);
    grouped(ragged, FORGE_W4A16_BF16, true);
    grouped(single, FORGE_W4A16_BF16, false);
    grouped(many, FORGE_W4A16_BF16, true);
}

/* ---- what is refused ---- */

static void refused(const struct forge_w4a16_linear *l, int code,
                    const char *says)
{
    struct forge_w4a16_cuda_linear *w;

    CHECK(w4.prepare(context, &w, l, why, sizeof(why)) == code && !w);
    CHECK(strstr(why, says));
}

static void test_refusals(void)
{
    struct w4_linear l = { .layout = FORGE_W4A16_GPTQ,
                           .o = 24,
                           .i = 64,
                           .group = 32,
                           .scales = FORGE_W4A16_F16 };
    int32_t beyond[64] = { [60] = 2 };
    const int64_t first[3] = { 0, 2, 1 }, negative[2] = { -2, 1 };
    const struct forge_w4a16_cuda_linear *w[2];
    char unread = 0;
    struct forge_w4a16_rows x = { (enum forge_w4a16_type)4, &unread, 64 };
    struct forge_w4a16_rows y = { FORGE_W4A16_F32, &unread, 24 };
    struct forge_w4a16_linear from;

    make(&l);
    w[0] = w[1] = prepare(&l, false);
    CHECK(w4.grouped(context, w, first, 1, &x, &y, why, sizeof(why)) ==
          E_CONFIG);
    CHECK(strstr(why, "no such type of x"));
    x.type = FORGE_W4A16_F16;
    CHECK(w4.grouped(context, w, first, 2, &x, &y, why, sizeof(why)) ==
          E_CONFIG);
    CHECK(strstr(why, "out of order"));
    CHECK(w4.grouped(context, w, negative, 1, &x, &y, why, sizeof(why)) ==
          E_CONFIG);
    CHECK(strstr(why, "out of order"));
    CHECK(w4.grouped(context, w, first, -1, &x, &y, why, sizeof(why)) ==
          E_CONFIG);
    CHECK(strstr(why, "no such number of linears"));
    y.p = NULL;
    CHECK(w4.grouped(context, w, first, 1, &x, &y, why, sizeof(why)) ==
          E_CONFIG);
    CHECK(strstr(why, "y is NULL"));
    y.p = &unread;
    y.ld = 23;
    CHECK(w4.grouped(context, w, first, 1, &x, &y, why, sizeof(why)) ==
          E_CONFIG);
    CHECK(strstr(why, "rows of y overlap"));
    CHECK(w4.grouped(context, w, first, 0, &x, &y, why, sizeof(why)) == 0);
    from = stored(&l);
    from.g_idx = beyond;
    refused(&from, E_DATA, "input 60 in group 2 of 2");
    from.g_idx = NULL;
    ((uint16_t *)l.stored)[24 + 7] = 0x7c00;
    refused(&from, E_DATA, "the scale of output 7, group 1 is not finite");
    from.outputs = 0;
    refused(&from, E_CONFIG, "no such shape");
    w4.release((struct forge_w4a16_cuda_linear *)(uintptr_t)w[0]);
    release(&l);
}

/* PLUG-IN SEED */
int main(int argc, char **argv)
{
    static const struct shape more[] = { { 520, 64, 32 },
                                         { 48, 2560, 32 },
                                         { 1032, 1920, 128 } };

    gpu_open(argc, argv, &memory);
    open_w4(argv[1]);
    seed = state;
    test_refusals();
    each_shape(one, more, ARRAY_LEN(more));
    test_many();
    test_tiles();
    test_few();
    test_halves();
    test_grouped();
    return 0;
}
