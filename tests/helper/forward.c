/* forward MODEL f32|bf16 [KERNELS [ROUTING [hooks|cache]]] < ids > floats - runs a model over
 * one sequence.
 *
 * ids: int32.  Out: f32, the residual stream entering each layer [T, H], or all
 * of several streams [T, n, H], the final norm's output [T, H], the logits [T, V].  KERNELS: by name, or "best".
 * The file ROUTING gets, for each layer with experts, int32 layer, K and E, the
 * experts int32 [T, K], the weights f32 [T, K] and statistics f64 [E, 5].  With
 * hooks the experts run as forge-calib runs them, and the order is checked.
 * With cache the logits alone, of pieces of growing length with a KV cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/cpu.h"
#include "common/math/threads.h"
#include "model/internal.h"
#include "model/moe.h"

static FILE *routing_out;
static bool hooked, cached;

enum { MAX_TOKENS = 1 << 16 };

static void put(const void *p, enum dtype t, int64_t n)
{
    float *f = malloc((size_t)n * sizeof(float));

    if (!f || !to_f32(f, p, t, (size_t)n) ||
        fwrite(f, sizeof(float), (size_t)n, stdout) != (size_t)n)
        die(E_IO, "cannot write");
    free(f);
}

/* The residual streams of all rows. */
static void put_streams(const struct model *m, const struct state *s)
{
    const struct model_config *c = model_config(m);
    bool several = c->family->altup;
    int64_t n = several ? c->altup.n : 1;
    int64_t at = several ? model_row_stream(c, 0) : 0;

    for (int64_t r = 0; r < s->rows; r++)
        put(state_at(s->x, s->dtype, r * s->row + at), s->dtype,
            n * c->hidden_size);
}

static int logits(struct model *m, struct state *s, struct err *e)
{
    const struct model_config *c = model_config(m);
    struct head *h;
    float *y = malloc((size_t)(s->rows * c->vocab_size) * sizeof(float));

    if (!y || model_load_head(m, &h, e) < 0)
        return e->code;
    if (head_norm(h, s->x, s->rows, s->x, e) < 0)
        return e->code;
    if (!s->cache)
        put(s->x, s->dtype, s->rows * c->hidden_size);
    for (int64_t v = 0; v < c->vocab_size; v += 1000) {
        int64_t n = c->vocab_size - v < 1000 ? c->vocab_size - v : 1000;

        if (head_logits(h, s->x, s->rows, v, n, y + v, c->vocab_size, e) < 0)
            return e->code;
    }
    put(y, DT_F32, s->rows * c->vocab_size);
    head_release(h);
    free(y);
    return 0;
}

/* ---- hooks that use the checkpoint's weights, and watch ---- */

struct watch {
    const struct experts_pass *p;
    int64_t in, mid;  /* experts so far */
    int64_t up, down; /* whose codes of gate and up, of down were asked for */
    int64_t rows;     /* of the expert at hand */
};

static int64_t tokens_of(const struct watch *w, int64_t expert)
{
    const struct routing *r = w->p->routing;
    int64_t n = 0;

    for (int64_t i = 0; i < r->n * r->top_k; i++)
        n += r->experts[i] == expert;
    return n;
}

static void watch_part(struct watch *w, int64_t expert, int64_t *at, int64_t n,
                       bool last, const char *what)
{
    if (expert != *at)
        die(E_BUG, "%s of expert %lld, not %lld", what, (long long)expert,
            (long long)*at);
    w->rows += n;
    if (!last)
        return;
    if (w->rows != tokens_of(w, expert))
        die(E_BUG, "%s of expert %lld: %lld rows", what, (long long)expert,
            (long long)w->rows);
    w->rows = 0;
    ++*at;
}

static int watch_in(void *arg, const struct expert_rows *r, struct err *e)
{
    struct watch *w = arg;

    (void)e;
    watch_part(w, r->expert, &w->in, r->n, r->last, "in");
    return 0;
}

static int watch_mid(void *arg, const struct expert_rows *r, struct err *e)
{
    struct watch *w = arg;

    (void)e;
    watch_part(w, r->expert, &w->mid, r->n, r->last, "mid");
    return 0;
}

static int watch_codes(void *arg, const struct linear *l, int n,
                       const struct quantized **codes, struct err *e)
{
    struct watch *w = arg;
    int64_t experts = model_config(w->p->m)->moe.n_experts, i = l->expert;
    bool down = l->input == IN_EXPERT_MID;
    int64_t ahead = i + (down ? 2 : 0), in = i + (down ? 4 : 2);

    (void)e;
    ahead = ahead < experts ? ahead : experts;
    in = in < experts ? in : experts;
    if (i != (down ? w->down : w->up) || n != (down ? 1 : 2) ||
        (down ? w->up != ahead : w->down != (i ? i - 1 : 0)))
        die(E_BUG, "codes of '%s' out of turn", l->module);
    if (w->in != in || w->mid != ahead)
        die(E_BUG, "no look-ahead at '%s'", l->module);
    *(down ? &w->down : &w->up) += 1;
    *codes = NULL;
    return 0;
}

/* What the routed experts add to one sequence. */
static int mix(struct model *m, int64_t layer, struct state *s, const void *in,
               struct err *e)
{
    const struct model_config *c = model_config(m);
    size_t n = (size_t)(s->rows * c->hidden_size);
    float *sum = calloc(n, sizeof(*sum));
    struct experts_pass p = { .m = m, .layer = layer, .in = in, .sum = sum };
    struct watch w = { .p = &p };
    struct expert_hooks hooks = {
        .in = watch_in, .mid = watch_mid, .codes = watch_codes, .arg = &w
    };
    size_t experts = (size_t)c->moe.n_experts;
    double *stats = calloc(experts * EXPERT_STATS, sizeof(*stats));
    struct router *r;
    struct routing to;

    p.stats = stats;
    p.dir = "/tmp";
    if (hooked)
        p.hooks = &hooks;
    if (!sum || !stats || router_load(m, layer, &r, e) < 0 ||
        routing_create(&to, s->rows, c->moe.top_k, e) < 0 ||
        routing_want_mass(&to, c->moe.n_experts, e) < 0 ||
        router_run(r, in, s->rows, &to, 0, e) < 0)
        return e->code;
    p.routing = &to;
    if (experts_run(&p, e) < 0)
        return e->code;
    if (model_add(m, s->x, sum, s->rows, e) < 0)
        return e->code;
    if (routing_out) {
        int32_t head[3] = { (int32_t)layer, (int32_t)to.top_k,
                            (int32_t)experts };
        size_t k = (size_t)(to.n * to.top_k);

        if (fwrite(head, sizeof(head), 1, routing_out) != 1 ||
            fwrite(to.experts, sizeof(int32_t), k, routing_out) != k ||
            fwrite(to.weights, sizeof(float), k, routing_out) != k ||
            fwrite(stats, sizeof(*stats), experts * EXPERT_STATS,
                   routing_out) != experts * EXPERT_STATS)
            die(E_IO, "cannot write");
    }
    router_release(r);
    routing_release(&to);
    free(sum);
    free(stats);
    return 0;
}

static int run_layer(struct model *m, int64_t i, struct state *s, struct err *e)
{
    const struct model_config *c = model_config(m);
    size_t bytes =
        (size_t)(s->rows * c->hidden_size) * (s->dtype == DT_BF16 ? 2 : 4);
    struct layer *l;
    void *in = NULL;

    if (model_load_layer(m, i, POINT_IN, POINT_OUT, NULL, &l, e) < 0 ||
        layer_run(l, s, POINT_MLP_IN, NULL, e) < 0)
        return e->code;
    if (model_layer_experts(c, i)) {
        in = malloc(bytes);
        if (!in)
            die(E_TEMP, "out of memory");
        memcpy(in, s->act, bytes);
    }
    if (layer_run(l, s, POINT_OUT, NULL, e) < 0)
        return e->code;
    layer_release(l);
    if (in && mix(m, i, s, in, e) < 0)
        return e->code;
    free(in);
    s->at = POINT_IN;
    return 0;
}

static int run(struct model *m, const int32_t *ids, int64_t n, struct err *e)
{
    const struct model_config *c = model_config(m);
    struct state s = { 0 };

    if (state_prepare(&s, m, POINT_IN, &n, 1, e) < 0 ||
        model_load_embedding(m, e) < 0 || model_embed(m, ids, n, s.x, e) < 0)
        return e->code;
    for (int64_t i = 0; i < c->n_layers; i++) {
        put_streams(m, &s);
        if (run_layer(m, i, &s, e) < 0)
            return e->code;
    }
    if (logits(m, &s, e) < 0)
        return e->code;
    state_release(&s);
    return 0;
}

/* Pieces of 1, 2, ... tokens behind each other. */
static int run_pieces(struct model *m, const int32_t *ids, int64_t n,
                      struct err *e)
{
    struct state s = { 0 };
    struct kv_cache *cache;

    if (kv_cache_create(&cache, m, n, 1, e) < 0 ||
        model_load_embedding(m, e) < 0)
        return e->code;
    for (int64_t at = 0, piece = 1; at < n; at += s.rows, piece++) {
        int64_t now = n - at < piece ? n - at : piece;

        s.cache = cache;
        if (state_prepare(&s, m, POINT_IN, &now, 1, e) < 0 ||
            model_embed(m, ids + at, now, s.x, e) < 0)
            return e->code;
        for (int64_t i = 0; i < model_config(m)->n_layers; i++)
            if (run_layer(m, i, &s, e) < 0)
                return e->code;
        kv_cache_advance(cache, now);
        if (logits(m, &s, e) < 0)
            return e->code;
    }
    kv_cache_release(cache);
    state_release(&s);
    return 0;
}

int main(int argc, char **argv)
{
    static int32_t ids[MAX_TOKENS];
    struct model *m;
    struct err e;
    int64_t n;

    base_init(argv[0]);
    if (argc < 3)
        die(E_USAGE, "forward MODEL f32|bf16 [LEVEL] < ids > floats");
    if (argc > 3 && strcmp(argv[3], "best") != 0 && cpu_choose(argv[3], &e) < 0)
        return 77;
    threads_set(2);
    n = (int64_t)fread(ids, sizeof(*ids), MAX_TOKENS, stdin);
    if (model_open(&m, argv[1], strcmp(argv[2], "f32") ? DT_BF16 : DT_F32, &e) <
        0)
        die_err(&e);
    hooked = argc > 5 && !strcmp(argv[5], "hooks");
    cached = argc > 5 && !hooked;
    routing_out = argc > 4 && !cached ? fopen(argv[4], "wb") : NULL;
    if ((cached ? run_pieces : run)(m, ids, n, &e) < 0)
        die_err(&e);
    model_close(m);
    if (routing_out && fclose(routing_out) != 0)
        die(E_IO, "cannot write");
    return 0;
}
