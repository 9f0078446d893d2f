/* synthetic.c - see synthetic.h. */
#include "calib/synthetic.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/emit.h"
#include "common/io/hash.h"
#include "common/math/splitmix.h"
#include "common/math/threads.h"

enum { GRAIN = 16384 }; /* elements that are worth a thread */

int synthetic_parse(struct synthetic *s, const char *word, struct err *e)
{
    static const char kind[] = "gaussian";
    const char *rest =
        strncmp(word, kind, strlen(kind)) ? "?" : word + strlen(kind);
    char again[24];

    s->seed = *rest == ':' ? strtoull(rest + 1, NULL, 10) : 1;
    snprintf(again, sizeof(again), ":%" PRIu64, s->seed);
    if (!*rest ||
        !strcmp(rest, again)) /* no sign, space, leading 0, overflow */
        return 0;
    return err_set(
        e, E_USAGE,
        "--synthetic: '%s' is not gaussian[:SEED], SEED a number below "
        "2^64",
        word);
}

/* ---- normal numbers ---- */

/* ln x, 0 < x < 1: x = m 2^k with m in [1/sqrt 2, sqrt 2),
 * ln m = 2 artanh s, s = (m - 1) / (m + 1), |s| < 0.1716. */
static double logarithm(double x)
{
    enum { TERMS = 11 }; /* s^22 / 23 < 2^-55 */
    double m, s, squared, sum = 0;
    int k;

    m = frexp(x, &k); /* exact */
    if (m < 0.70710678118654752) {
        m *= 2;
        k--;
    }
    s = (m - 1) / (m + 1);
    squared = s * s;
    for (int i = TERMS; i >= 0; i--)
        sum = sum * squared + 1.0 / (2 * i + 1);
    return 2 * s * sum + k * 0.69314718055994531;
}

static double polynomial(const double *c, int degree, double x)
{
    double sum = c[degree];

    for (int i = degree - 1; i >= 0; i--)
        sum = sum * x + c[i];
    return sum;
}

/* PPND7 of algorithm AS 241 (Wichura 1988, Applied Statistics 37(3)). */
double synthetic_normal(double u)
{
    static const double a[] = { 3.3871327179, 50.434271938, 159.29113202,
                                59.109374720 };
    static const double b[] = { 1, 17.895169469, 78.757757664, 67.187563600 };
    static const double c[] = { 1.4234372777, 2.7568153900, 1.3067284816,
                                0.17023821103 };
    static const double d[] = { 1, 0.73700164250, 0.12021132975 };
    static const double f[] = { 6.6579051150, 3.0812263860, 0.42868294337,
                                0.017337203997 };
    static const double g[] = { 1, 0.24197894225, 0.012258202635 };
    double q = u - 0.5, r, x;

    if (fabs(q) <= 0.425) {
        r = 0.180625 - q * q;
        return q * polynomial(a, 3, r) / polynomial(b, 3, r);
    }
    r = sqrt(-logarithm(0.5 - fabs(q)));
    x = r <= 5 ? polynomial(c, 3, r - 1.6) / polynomial(d, 2, r - 1.6) :
                 polynomial(f, 3, r - 5) / polynomial(g, 2, r - 5);
    return q < 0 ? -x : x;
}

/* ---- frames ---- */

/* Elements first, first + 1, ... of the matrix with this key. */
struct draws {
    uint64_t key, first;
    enum dtype dtype;
    void *to;
};

static void fill(void *ctx, size_t begin, size_t end)
{
    const struct draws *d = ctx;

    for (size_t i = begin; i < end; i++) {
        uint64_t z = splitmix64(d->key + (d->first + i + 1) * SPLITMIX_STEP);
        float x = (float)synthetic_normal(((double)(z >> 12) + 0.5) * 0x1p-52);

        if (d->dtype == DT_F32)
            ((float *)d->to)[i] = x;
        else
            ((uint16_t *)d->to)[i] = bf16_from_f32(x);
    }
}

/* A run of synthetic_write(). */
struct writing {
    struct synthetic s;
    const struct model_config *c;
    struct stream_writer *w;
    struct progress *p;
    void *rows;
};

/* Write `tokens` rows of an input, in frames of at most seqlen. */
static int write_input(struct writing *t, int64_t layer, enum input_class in,
                       int64_t expert, int64_t width, int64_t tokens,
                       struct err *e)
{
    char name[MODULE_PATH_MAX], modules[EMIT_MODULES];
    struct frame f = { .role = ROLE_ACTIVATION,
                       .dtype = t->s.dtype,
                       .ndim = 2,
                       .modules = modules };

    model_activation_name(t->c, layer, in, expert, name);
    snprintf(f.name, sizeof(f.name), "%s", name);
    emit_modules(t->c, layer, in, expert, modules);
    for (int64_t at = 0; at < tokens; at += t->s.seqlen) {
        int64_t n = tokens - at < t->s.seqlen ? tokens - at : t->s.seqlen;
        size_t count = (size_t)(n * width);
        struct draws d = { .first = (uint64_t)(at * width), .dtype = f.dtype };

        f.len = count * dtype_bits(f.dtype) / 8;
        if (mem_grow(&t->rows, f.len, "activations", e) < 0)
            return e->code;
        d.key = XXH3_64bits_withSeed(name, strlen(name), t->s.seed);
        d.to = t->rows;
        threads_for(count, GRAIN, fill, &d);
        f.dims[0] = f.samples = (uint64_t)n;
        f.dims[1] = (uint64_t)width;
        f.sequence++;
        f.last = at + n == tokens;
        f.data = t->rows;
        if (stream_write(t->w, &f, e) < 0)
            return e->code;
        progress_step(t->p, f.name, f.len);
    }
    return 0;
}

static int write_layer(struct writing *t, int64_t layer, struct err *e)
{
    const struct moe *moe = &t->c->moe;
    int64_t experts = model_layer_experts(t->c, layer);
    int64_t tokens = t->s.sequences * t->s.seqlen, routed;

    for (enum point p = POINT_ATTN_IN; p < POINT_OUT; p++)
        if (point_exists(t->c, layer, p) &&
            write_input(t, layer, point_input(p), -1,
                        point_width(t->c, layer, p), tokens, e) < 0)
            return e->code;
    routed = experts ? (tokens * moe->top_k + experts - 1) / experts : 0;
    for (int64_t i = 0; i < experts; i++)
        if (write_input(t, layer, IN_EXPERT, i, t->c->hidden_size, routed, e) <
                0 ||
            write_input(t, layer, IN_EXPERT_MID, i, moe->width, routed, e) < 0)
            return e->code;
    return 0;
}

static int write_layers(struct writing *t, struct err *e)
{
    int64_t first = t->s.layer < 0 ? 0 : t->s.layer, n = t->c->n_layers;
    int64_t end = t->s.layer < 0 ? n : first + 1;

    if (first >= n)
        return err_set(e, E_USAGE,
                       "--layer: the model has layers 0 to %" PRId64, n - 1);
    t->p->n_layers = t->s.layer < 0 ? (uint64_t)n : 0;
    for (int64_t i = first; i < end; i++) {
        t->p->layers = (uint64_t)i + 1;
        if (write_layer(t, i, e) < 0)
            return e->code;
    }
    return 0;
}

int synthetic_write(const struct synthetic *s, const char *model,
                    struct stream_writer *w, struct progress *p, struct err *e)
{
    struct model_config c = { 0 };
    struct writing t = { .s = *s, .c = &c, .w = w, .p = p };
    int rc = model_config_read(&c, model, e);

    c.kv_b = s->kv_b && c.mla.kv_lora;
    t.s.sequences = s->sequences ? s->sequences : 128;
    t.s.seqlen = s->seqlen ? s->seqlen : 512;
    if (!rc)
        rc = write_layers(&t, e);
    free(t.rows);
    model_config_release(&c);
    return rc;
}
