/* mkexperts - streams of one layer of experts, random, of any size:
 *
 *     mkexperts acts EXPERTS HIDDEN WIDTH TOKENS     what forge-calib sends
 *     mkexperts weights EXPERTS HIDDEN WIDTH         what forge-weights sends
 *     mkexperts join EXPERTS HIDDEN WIDTH < hessians ... with --join
 *     mkexperts compare A B     codes that differ, and how far Hessians do
 *
 * Expert e has TOKENS / 8 times 1 to 15 tokens, expert 3 none; inputs come in the
 * order in(0) in(1) mid(0) in(2) mid(1) ... as in the model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/stream.h"

enum { PART = 2048 }; /* tokens of a frame */

static struct err err;
static struct stream_writer *out;
static uint64_t experts, hidden, width, tokens;
static uint16_t *rows;

static void must(int rc)
{
    if (rc >= 0)
        return;
    err_print(&err);
    stream_abort(out, &err);
    exit(-rc);
}

/* Sums of four bytes, nearly normal, a seventh of the one before, and some
 * columns larger than others; exact in bf16 or cut. */
static void fill(uint64_t seed, uint64_t n, uint64_t cols, float size)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15 + 1;
    float last = 0;

    for (uint64_t i = 0; i < n * cols; i++) {
        union {
            float f;
            uint32_t u;
        } v;
        uint64_t y;

        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        y = x * 0x2545f4914f6cdd1d;
        last = last / 7 +
               (float)((y & 255) + (y >> 8 & 255) + (y >> 16 & 255) +
                       (y >> 24 & 255)) -
               510;
        v.f = last * size * (i % cols * 7 % 41 ? 1.0f : 5.0f);
        rows[i] = (uint16_t)(v.u >> 16);
    }
}

static uint64_t tokens_of(uint64_t e)
{
    return e == 3 ? 0 : tokens * (1 + e * 7 % 15) / 8;
}

static void activation(uint64_t e, bool mid)
{
    uint64_t cols = mid ? width : hidden, all = tokens_of(e), at = 0;
    char modules[400];

    snprintf(modules, sizeof(modules),
             mid ? "m.experts.%llu.down_proj" :
                   "m.experts.%llu.gate_proj\nm.experts.%llu.up_proj",
             (unsigned long long)e, (unsigned long long)e);
    for (uint64_t part = 1; at < all || part == 1; part++) {
        uint64_t n = all - at < PART ? all - at : PART;
        struct frame f = { .role = ROLE_ACTIVATION,
                           .dtype = DT_BF16,
                           .ndim = 2,
                           .dims = { n, cols },
                           .modules = modules,
                           .samples = n,
                           .sequence = part,
                           .last = at + n == all,
                           .data = rows,
                           .len = n * cols * 2 };

        fill(1000 * e + 10 * part + mid, n, cols, 0x1p-8f);
        snprintf(f.name, sizeof(f.name), "m.experts.%llu.%s",
                 (unsigned long long)e, mid ? "mid" : "in");
        must(stream_write(out, &f, &err));
        at += n;
    }
}

static void acts(void)
{
    activation(0, false);
    for (uint64_t e = 0; e < experts; e++) {
        if (e + 1 < experts)
            activation(e + 1, false);
        activation(e, true);
    }
}

static void weight(uint64_t e, const char *linear)
{
    bool down = !strcmp(linear, "down_proj");
    struct frame f = { .role = ROLE_WEIGHT,
                       .dtype = DT_BF16,
                       .ndim = 2,
                       .dims = { down ? hidden : width, down ? width : hidden },
                       .data = rows,
                       .len = hidden * width * 2 };

    fill(1000 * e + (uint64_t)linear[0], f.dims[0], f.dims[1], 0x1p-13f);
    snprintf(f.name, sizeof(f.name), "m.experts.%llu.%s", (unsigned long long)e,
             linear);
    must(stream_write(out, &f, &err));
}

static void weights(void)
{
    for (uint64_t e = 0; e < experts; e++) {
        weight(e, "gate_proj");
        weight(e, "up_proj");
        weight(e, "down_proj");
    }
}

static void join(void)
{
    struct stream_reader *in;
    struct frame f;
    int rc;

    must(stream_open(&in, NULL, NULL, &err));
    while ((rc = stream_next(in, &f, &err)) > 0) {
        uint64_t e = strtoull(f.name + strlen("m.experts."), NULL, 10);

        must(stream_write(out, &f, &err));
        if (f.role != ROLE_HESSIAN)
            continue;
        if (strstr(f.name, ".mid")) {
            weight(e, "down_proj");
        } else {
            weight(e, "gate_proj");
            weight(e, "up_proj");
        }
    }
    must(rc);
    stream_close(in);
}

/* ---- two streams of the same names ---- */

struct copy {
    struct frame f;
    struct copy *next;
};

static struct copy *load(const char *path, enum role role)
{
    struct copy *all = NULL;
    struct stream_reader *in;
    struct frame f;
    int rc;

    must(stream_open(&in, path, NULL, &err));
    while ((rc = stream_next(in, &f, &err)) > 0)
        if (f.role == role) {
            struct copy *c = malloc(sizeof(*c));
            void *data = malloc(f.len + 1);

            if (!c || !data)
                exit(-E_TEMP);
            *c = (struct copy){ .f = f, .next = all };
            c->f.data = memcpy(data, f.data, f.len);
            all = c;
        }
    must(rc);
    stream_close(in);
    return all;
}

static const struct frame *find(const struct copy *c, const char *name)
{
    while (c && strcmp(c->f.name, name))
        c = c->next;
    if (!c) {
        fprintf(stderr, "mkexperts: no '%s'\n", name);
        exit(1);
    }
    return &c->f;
}

static uint64_t differing(const struct frame *a, const struct frame *b)
{
    const uint8_t *x = a->data, *y = b->data;
    uint64_t n = 0;

    for (size_t i = 0; i < a->len; i++)
        n += ((x[i] ^ y[i]) & 15) != 0, n += (x[i] ^ y[i]) > 15;
    return n;
}

static double distance(const struct frame *a, const struct frame *b)
{
    const float *x = a->data, *y = b->data;
    double off = 0, all = 0;

    for (size_t i = 0; i < a->len / sizeof(*x); i++) {
        double d = (double)x[i] - (double)y[i];

        off += d * d;
        all += (double)y[i] * (double)y[i];
    }
    return sqrt(off / all);
}

static int compare(const char *a, const char *b)
{
    enum role role[] = { ROLE_CODES, ROLE_HESSIAN };
    uint64_t codes = 0, of = 0, modules = 0;
    double worst = 0;

    for (int k = 0; k < 2; k++) {
        struct copy *x = load(a, role[k]), *y = load(b, role[k]);

        for (; x; x = x->next) {
            const struct frame *g = find(y, x->f.name);

            if (role[k] == ROLE_HESSIAN) {
                worst = fmax(worst, distance(&x->f, g));
                continue;
            }
            codes += differing(&x->f, g);
            modules += differing(&x->f, g) > 0;
            of += 2 * g->len;
        }
    }
    printf("%llu of %llu codes differ, in %llu modules; hessians by %.1e\n",
           (unsigned long long)codes, (unsigned long long)of,
           (unsigned long long)modules, worst);
    return (double)codes > 1e-3 * (double)of || !(worst < 1e-4);
}

int main(int argc, char **argv)
{
    const struct stream_output to = { .path = NULL };

    base_init(argv[0]);
    if (argc == 4 && !strcmp(argv[1], "compare"))
        return compare(argv[2], argv[3]);
    if (argc < 5)
        return -E_USAGE;
    experts = strtoull(argv[2], NULL, 10);
    hidden = strtoull(argv[3], NULL, 10);
    width = strtoull(argv[4], NULL, 10);
    tokens = argc > 5 ? strtoull(argv[5], NULL, 10) : 0;
    rows = malloc((PART * (hidden + width) + hidden * width) * 2);
    if (!rows)
        return -E_TEMP;
    must(stream_create(&out, &to, &err));
    if (!strcmp(argv[1], "acts"))
        acts();
    else if (!strcmp(argv[1], "weights"))
        weights();
    else
        join();
    must(stream_finish(out, &err));
    free(rows);
    return 0;
}
