/* The GPU's Hessian against sums in double; the same bytes when run again. */
#include "gpu.h"

#include "hessian/cross.h"
#include "hessian/hessian_table.h"

static void *tokens(uint64_t n, uint64_t cols)
{
    uint16_t *x = room(n * cols * 2);

    for (uint64_t i = 0; i < n * cols; i++)
        x[i] = bf16_from_f32(normal() * (i % cols % 50 ? 1 : 20));
    return x;
}

static float *run(const uint16_t *x, uint64_t n, const struct hessian_shape *s,
                  uint64_t elements, uint64_t part)
{
    float *out = room(elements * 4);
    struct cuda_hessian *h;

    OK(hessian_functions()->open(&h, gpu, s, e));
    for (uint64_t i = 0; i < n; i += part)
        OK(hessian_functions()->add(
            h, x + i * s->cols, n - i < part ? n - i : part, false, NULL, e));
    OK(hessian_functions()->finish(h, out, false, e));
    hessian_functions()->close(h);
    return out;
}

static double exact(const uint16_t *x, uint64_t n, uint64_t cols, uint64_t i,
                    uint64_t j)
{
    double sum = 0;

    for (uint64_t t = 0; t < n; t++)
        sum += (double)f32_from_bf16(x[t * cols + i]) *
               (double)f32_from_bf16(x[t * cols + j]);
    return 2 * sum / (double)n;
}

/* Relative Frobenius error over a sample of the elements. */
static void check(uint64_t n, uint64_t cols, uint64_t block)
{
    struct hessian_shape s = { cols, block, DT_BF16 };
    uint64_t elements = block ? (cols + block - 1) / block * block * block :
                                cols * (cols + 1) / 2;
    uint16_t *x = tokens(n, cols);
    float *h = run(x, n, &s, elements, n), *again = run(x, n, &s, elements, 77);
    double wrong = 0, all = 0;

    CHECK(!memcmp(h, again, elements * 4));
    for (int k = 0; k < 3000; k++) {
        uint64_t i = rnd() % cols, j = rnd() % (i + 1), at;
        double want;

        if (k < 64) /* the diagonal and the corners */
            j = k % 2 ? i : 0;
        if (block && i / block != j / block)
            continue;
        at = block ? (i / block * block + i % block) * block + j % block :
                     i * (i + 1) / 2 + j;
        want = exact(x, n, cols, i, j);
        CHECK(isfinite(h[at]));
        wrong += (h[at] - want) * (h[at] - want);
        all += want * want;
        if (block) {
            at = (i / block * block + j % block) * block + i % block;
            CHECK(h[at] ==
                  h[(i / block * block + i % block) * block + j % block]);
        }
    }
    if (block && cols % block) /* what the last block lacks */
        CHECK(h[elements - 1] == 0);
    printf("%llu tokens, %llu inputs, block %llu: relative error %.2g\n",
           (unsigned long long)n, (unsigned long long)cols,
           (unsigned long long)block, sqrt(wrong / all));
    CHECK(sqrt(wrong / all) < 1e-4);
    free(x);
    free(h);
    free(again);
}

/* C of two random streams against sums in double of some of its elements. */
static void check_cross(uint64_t n, uint64_t rows, uint64_t cols)
{
    struct cross_shape s = { .rows = rows, .cols = cols, .dtype = DT_BF16 };
    uint16_t *y = tokens(n, rows), *x = tokens(n, cols);
    float *sum[2] = { room(rows * cols * 4), room(rows * cols * 4) };
    double wrong = 0, all = 0;

    for (int k = 0; k < 2; k++) { /* in parts of another size */
        const struct hessian_table *h = hessian_functions();
        struct cuda_cross *c;

        OK(h->cross_open(&c, gpu, &s, e));
        for (uint64_t t = 0, part; t < n; t += part) {
            part = k ? 777 : 4096;
            part = part < n - t ? part : n - t;
            OK(h->cross_add(c, y + t * rows, x + t * cols, part, false, NULL,
                            e));
        }
        OK(h->cross_finish(c, 2. / (double)n, sum[k], false, e));
        h->cross_close(c);
    }
    CHECK(!memcmp(sum[0], sum[1], rows * cols * 4));
    for (int k = 0; k < 500; k++) {
        uint64_t i = rnd() % rows, j = rnd() % cols;
        double want = 0, got = (double)sum[0][i * cols + j];

        for (uint64_t t = 0; t < n; t++)
            want += (double)f32_from_bf16(y[t * rows + i]) *
                    (double)f32_from_bf16(x[t * cols + j]);
        want *= 2. / (double)n;
        CHECK(isfinite(got));
        wrong += (got - want) * (got - want);
        all += want * want;
    }
    printf("cross, %llu tokens, %llu x %llu: relative error %.2g\n",
           (unsigned long long)n, (unsigned long long)rows,
           (unsigned long long)cols, sqrt(wrong / all));
    CHECK(sqrt(wrong / all) < 1e-4);
    free(y);
    free(x);
    free(sum[0]);
    free(sum[1]);
}

/* The Hessian of x[n, cols] into a block of the device, and from there to got. */
static void leave_there(const uint16_t *x, uint64_t n, uint64_t cols,
                        void *block, float *got)
{
    struct hessian_shape s = { .cols = cols, .dtype = DT_BF16 };
    const struct hessian_table *t = hessian_functions();
    struct cuda_hessian *h;

    OK(t->open(&h, gpu, &s, e));
    OK(t->add(h, x, n, false, NULL, e));
    OK(t->finish(h, block, true, e));
    t->close(h);
    OK(device->settle(gpu, e));
    OK(device->fetch(gpu, got, block, cols * (cols + 1) * 2, e));
}

/* Tokens of the device, in two parts. */
static float *run_there(const uint16_t *block, uint64_t n, uint64_t cols)
{
    struct hessian_shape s = { .cols = cols, .dtype = DT_BF16 };
    const struct hessian_table *t = hessian_functions();
    float *out = room(cols * (cols + 1) * 2);
    struct cuda_hessian *h;

    OK(t->open(&h, gpu, &s, e));
    OK(t->add(h, block, 1, true, NULL, e));
    OK(t->add(h, block + cols, n - 1, true, NULL, e));
    OK(t->finish(h, out, false, e));
    t->close(h);
    return out;
}

/* What is left in a block is what the host gets; and what is looked at there. */
static void check_there(uint64_t cols)
{
    enum { TOKENS = 64, HUGE_ONE = 5 };
    struct hessian_shape s = { .cols = cols, .dtype = DT_BF16 };
    const struct hessian_table *t = hessian_functions();
    uint64_t elements = cols * (cols + 1) / 2, bytes = elements * 4, first, bad;
    float *got = room(bytes), *diagonal = room(cols * 4), *want, *again;
    uint16_t *x = room(TOKENS * cols * 2);
    void *block;

    /* sums of these are whole numbers below 65 and their mean is exact: both
     * halves of each f32 are finite bf16 */
    for (uint64_t i = 0; i < TOKENS * cols; i++)
        x[i] = bf16_from_f32((float)(rnd() % 3) - 1);
    want = run(x, TOKENS, &s, elements, TOKENS);
    OK(device->block(gpu, &block, bytes, e));
    OK(device->settle(gpu, e));
    OK(device->fetch(gpu, got, block, bytes, e));
    for (uint64_t i = 0; i < elements; i++)
        CHECK(got[i] == 0);
    leave_there(x, TOKENS, cols, block, got);
    CHECK(!memcmp(got, want, bytes));
    OK(t->diagonal(gpu, block, cols, diagonal, e));
    for (uint64_t i = 0; i < cols; i++)
        CHECK(diagonal[i] == want[i * (i + 3) / 2]);
    OK(t->finite(gpu, DT_F32, block, elements, &first, e));
    CHECK(first == elements);
    OK(t->finite(gpu, DT_BF16, block, elements * 2, &first, e));
    CHECK(first == elements * 2);
    free(want);
    want = run((const uint16_t *)got, 3, &s, elements, 3);
    again = run_there(block, 3, cols);
    CHECK(!memcmp(again, want, bytes));
    x[HUGE_ONE] = bf16_from_f32(3e38f);
    leave_there(x, TOKENS, cols, block, got);
    for (bad = 0; bad < elements && isfinite(got[bad]); bad++)
        ;
    OK(t->finite(gpu, DT_F32, block, elements, &first, e));
    CHECK(bad < elements && first == bad);
    for (uint64_t k = 0; k < 5 && k < bad;
         k++) { /* not at lines; ends in one */
        OK(t->finite(gpu, DT_F32, (float *)block + k, elements - k, &first, e));
        CHECK(first == bad - k);
        OK(t->finite(gpu, DT_F32, (float *)block + k, bad + 1 - k, &first, e));
        CHECK(first == bad - k);
        OK(t->finite(gpu, DT_F32, (float *)block + k, bad - k, &first, e));
        CHECK(first == bad - k);
    }
    device->drop(gpu, block);
    printf("in a block that is lent, %llu inputs: the same\n",
           (unsigned long long)cols);
    free(got);
    free(want);
    free(again);
    free(diagonal);
    free(x);
}

/* Chunks that are multiplied where they lie, and an element that is not finite. */
static void check_long(uint64_t n, uint64_t cols, uint64_t block)
{
    struct hessian_shape s = { cols, block, DT_BF16 };
    const struct hessian_table *t = hessian_functions();
    uint64_t elements = block ? (cols + block - 1) / block * block * block :
                                cols * (cols + 1) / 2;
    uint16_t *x = tokens(n, cols), *there;
    float *want = run(x, n, &s, elements, n), *got = room(elements * 4);
    struct cuda_hessian *h;
    void *p;

    OK(device->block(gpu, &p, n * cols * 2, e));
    OK(t->put(gpu, p, x, n * cols * 2, e));
    there = p;
    OK(t->open(&h, gpu, &s, e));
    OK(t->add(h, there, n, true, NULL, e));
    OK(t->finish(h, got, false, e));
    t->close(h);
    CHECK(!memcmp(got, want, elements * 4));
    for (uint64_t from = 0; from < 10; from++) {
        uint64_t bad = from + rnd() % (n * cols - from), first;

        x[bad] = 0xff80; /* -infinity */
        OK(t->put(gpu, there + bad, x + bad, 2, e));
        OK(t->finite(gpu, DT_BF16, there + from, n * cols - from, &first, e));
        CHECK(first == bad - from);
        x[bad] = 0;
        OK(t->put(gpu, there + bad, x + bad, 2, e));
    }
    device->drop(gpu, p);
    printf("%llu tokens of %llu inputs on the device: the same\n",
           (unsigned long long)n, (unsigned long long)cols);
    free(x);
    free(want);
    free(got);
}

/* x[n, cols] in a block of the device, `at` elements behind its begin; *block is
 * dropped. */
static uint16_t *put_there(const uint16_t *x, uint64_t n, uint64_t cols,
                           uint64_t at, void **block)
{
    uint64_t bytes = n * cols * 2;

    OK(device->block(gpu, block, bytes + at * 2, e));
    OK(hessian_functions()->put(gpu, (uint16_t *)*block + at, x, bytes, e));
    return (uint16_t *)*block + at;
}

/* x of the host with its rows multiplied by root. */
static uint16_t *weighed(const uint16_t *x, const float *root, uint64_t n,
                         uint64_t cols)
{
    uint16_t *to = room(n * cols * 2);

    for (uint64_t i = 0; i < n * cols; i++)
        to[i] = bf16_from_f32(f32_from_bf16(x[i]) * root[i / cols]);
    return to;
}

/* C of y and x, of the device with roots, in two parts; or of the host. */
static float *run_cross(const uint16_t *y, uint64_t rows, const uint16_t *x,
                        uint64_t cols, const float *root, uint64_t n)
{
    struct cross_shape s = { .rows = rows, .cols = cols, .dtype = DT_BF16 };
    const struct hessian_table *h = hessian_functions();
    float *sum = room(rows * cols * 4);
    uint64_t part = n > 5 ? 5 : n;
    struct cuda_cross *c;

    OK(h->cross_open(&c, gpu, &s, e));
    OK(h->cross_add(c, y, x, part, root, root, e));
    OK(h->cross_add(c, y + part * rows, x + part * cols, n - part, root,
                    root ? root + part : NULL, e));
    OK(h->cross_finish(c, 2. / (double)n, sum, false, e));
    h->cross_close(c);
    return sum;
}

/* Moments of rows of the device times root weights: bytes of those of weighted rows of
 * the host.  x begins `at` elements, y two more, behind a line. */
static void check_weights(uint64_t n, uint64_t rows, uint64_t cols, uint64_t at)
{
    struct hessian_shape s = { .cols = cols, .dtype = DT_BF16 };
    const struct hessian_table *t = hessian_functions();
    uint64_t elements = cols * (cols + 1) / 2, part = n > 3 ? 3 : n;
    uint16_t *x = tokens(n, cols), *y = tokens(n, rows), *wx, *wy, *dx, *dy;
    float *root = room(n * 4), *want, *got = room(elements * 4), *cross[2];
    struct cuda_hessian *h;
    void *block[2];

    for (uint64_t i = 0; i < n; i++)
        root[i] = i % 7 == 3 ? 0 : expf(normal());
    wx = weighed(x, root, n, cols);
    wy = weighed(y, root, n, rows);
    dx = put_there(x, n, cols, at, &block[0]);
    dy = put_there(y, n, rows, at + 2, &block[1]);
    want = run(wx, n, &s, elements, n);
    OK(t->open(&h, gpu, &s, e));
    OK(t->add(h, dx, part, true, root, e));
    OK(t->add(h, dx + part * cols, n - part, true, root + part, e));
    OK(t->finish(h, got, false, e));
    t->close(h);
    CHECK(!memcmp(got, want, elements * 4));
    cross[0] = run_cross(wy, rows, wx, cols, NULL, n);
    cross[1] = run_cross(dy, rows, dx, cols, root, n);
    CHECK(!memcmp(cross[0], cross[1], rows * cols * 4));
    /* what is lent is as it was */
    OK(device->settle(gpu, e));
    OK(device->fetch(gpu, wx, dx, n * cols * 2, e));
    CHECK(!memcmp(wx, x, n * cols * 2));
    OK(device->fetch(gpu, wy, dy, n * rows * 2, e));
    CHECK(!memcmp(wy, y, n * rows * 2));
    printf("weights of %llu tokens, %llu x %llu: the same\n",
           (unsigned long long)n, (unsigned long long)rows,
           (unsigned long long)cols);
    device->drop(gpu, block[0]);
    device->drop(gpu, block[1]);
    void *const all[] = { x, y, wx, wy, root, want, got, cross[0], cross[1] };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        free(all[i]);
}

int main(int argc, char **argv)
{
    gpu_open(argc, argv, &hessian_plugin);
    check_there(520);
    check_weights(1, 8, 8, 0);
    check_weights(3, 1, 1, 0);
    check_weights(777, 75, 333, 1);
    check_weights(5000, 264, 520, 0);
    check_weights(70001, 24, 40, 8);
    check_weights(20000, 512, 264, 4);
    check_long(40000, 1288, 0);
    check_long(33000, 333, 0);
    check_long(16384, 512, 128);
    check_cross(1, 8, 8);
    check_cross(9000, 512, 264);
    check_cross(20000, 75, 333);
    check(1, 8, 0);
    check(300, 200, 0);
    check(9000, 1288, 0);
    check(5000, 2048, 0);
    check(40000, 264, 0);
    check(500, 333, 0);
    check(5000, 520, 128);
    check(5000, 512, 128);
    return 0;
}
