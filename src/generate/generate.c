/* generate.c - see generate.h. */
#include "generate/generate.h"

#include <math.h>
#include <stdlib.h>

#include "common/math/threads.h"
#include "device/device.h"
#include "model/moe.h"

enum { CHUNK = GENERATE_TOGETHER }; /* tokens of a prompt that run together */
#define CACHE_BYTES ((int64_t)8 << 30) /* of more than that many sequences */

struct generator {
    struct model *m;
    const char *tmp;            /* directory of temporary files */
    struct layer **layer;       /* [layers] */
    struct mixture *mixture;    /* [layers], zero for dense layers */
    struct experts_kept **kept; /* [layers] experts in memory; NULL for dense
                                 * layers */
    struct head *head;
    struct state state;
    struct kv_cache *cache;
    int64_t cache_tokens; /* tokens that `cache` can hold, of each sequence */
    int64_t sequences;    /* that grow together */
    int64_t
        rows; /* that mixtures and `embedded` have room for: a chunk, or more */
    void *normed;   /* [sequences, H] final norm's output, device memory */
    void *embedded; /* [rows, row] embeddings on their way to a device */
    float *
        logits; /* [sequences, vocab_size], or of one: others are drawn there */
};

static int load_layer(struct generator *g, int64_t i, struct err *e)
{
    if (model_load_layer(g->m, i, POINT_IN, POINT_OUT, NULL, &g->layer[i], e) <
        0)
        return e->code;
    if (!model_layer_experts(model_config(g->m), i))
        return 0;
    return experts_load(g->m, i, &g->kept[i], e);
}

/* Room for so many rows at a time. */
static int reserve_rows(struct generator *g, int64_t rows, struct err *e)
{
    const struct model_config *c = model_config(g->m);

    if (rows <= g->rows)
        return 0;
    g->rows = 0;
    for (int64_t i = 0; i < c->n_layers; i++) {
        if (!g->kept[i])
            continue;
        mixture_close(&g->mixture[i]);
        if (mixture_open(&g->mixture[i], g->m, i, rows, rows, g->tmp, e) < 0)
            return e->code;
        g->mixture[i].kept = g->kept[i];
    }
    if (mem_grow(&g->embedded,
                 (size_t)rows * (size_t)model_row(c) * sizeof(float),
                 "embeddings", e) < 0)
        return e->code;
    g->rows = rows;
    return 0;
}

static int load(struct generator *g, int progress, struct err *e)
{
    const struct model_config *c = model_config(g->m);
    size_t n = (size_t)c->n_layers;
    struct progress p;
    int rc = 0;

    g->layer = mem_zero(n, sizeof(*g->layer), "layers", e);
    g->mixture = mem_zero(n, sizeof(*g->mixture), "layers", e);
    g->kept = mem_zero(n, sizeof(*g->kept), "layers", e);
    g->logits = mem_zero((size_t)c->vocab_size, sizeof(float), "logits", e);
    if (!g->layer || !g->mixture || !g->kept || !g->logits ||
        model_alloc(g->m, &g->normed, (size_t)c->hidden_size * sizeof(float),
                    false, NULL, e) < 0)
        return e->code;
    progress_start(&p, progress, "layers", n);
    for (int64_t i = 0; i < c->n_layers && !rc; i++) {
        rc = load_layer(g, i, e);
        progress_step(&p, NULL, 0);
    }
    if (rc < 0 || model_load_embedding(g->m, e) < 0 ||
        model_load_head(g->m, &g->head, e) < 0)
        return e->code;
    progress_finish(&p, NULL);
    return 0;
}

static int open_on(struct generator **out, bool device, const char *dir,
                   const char *tmp, enum dtype dtype, int progress,
                   struct err *e)
{
    struct generator *g = mem_zero(1, sizeof(*g), "generator", e);

    *out = NULL;
    if (!g)
        return e->code;
    g->tmp = tmp;
    if (model_open(&g->m, dir, dtype, e) < 0 ||
        (device && model_use_device(g->m, 0, e) < 0) ||
        load(g, progress, e) < 0) {
        generator_close(g);
        return e->code;
    }
    *out = g;
    return 0;
}

int generator_open(struct generator **g, const char *dir, const char *tmp,
                   enum dtype dtype, int progress, struct err *e)
{
    int rc = open_on(g, true, dir, tmp, dtype, progress, e);

    /* the model, or what is left of the device's memory, turns out too small */
    return rc < 0 && device_gpu() && device_declined(&rc, e) ?
               open_on(g, false, dir, tmp, dtype, progress, e) :
               rc;
}

void generator_close(struct generator *g)
{
    if (!g)
        return;
    for (int64_t i = 0; g->m && i < model_config(g->m)->n_layers; i++) {
        if (g->layer)
            layer_release(g->layer[i]);
        if (g->mixture && g->mixture[i].m)
            mixture_close(&g->mixture[i]);
        if (g->kept)
            experts_release(g->kept[i]);
    }
    free(g->layer);
    free(g->mixture);
    free(g->kept);
    head_release(g->head);
    state_release(&g->state);
    kv_cache_release(g->cache);
    if (g->m)
        model_free(g->m, g->normed);
    free(g->embedded);
    free(g->logits);
    model_close(g->m);
    free(g);
}

bool generator_on_device(const struct generator *g)
{
    return model_on_device(g->m);
}

const struct model_config *generator_config(const struct generator *g)
{
    return model_config(g->m);
}

int generator_begin(struct generator *g, int64_t tokens, struct err *e)
{
    return generator_begin_several(g, 1, tokens, e);
}

/* Memory of what comes out behind the last layer. */
static int reserve_outputs(struct generator *g, int64_t sequences,
                           struct err *e)
{
    const struct model_config *c = model_config(g->m);

    if (reserve_rows(g, sequences > CHUNK ? sequences : (int64_t)CHUNK, e) < 0)
        return e->code;
    if (sequences <= g->sequences)
        return 0;
    model_free(g->m, g->normed);
    g->normed = NULL;
    if (model_alloc(g->m, &g->normed,
                    (size_t)(sequences * c->hidden_size) * sizeof(float), false,
                    NULL, e) < 0)
        return e->code;
    if (model_on_device(g->m))
        sequences = 1;
    return mem_grow(&g->logits,
                    (size_t)(sequences * c->vocab_size) * sizeof(float),
                    "logits", e);
}

int64_t generator_together(const struct generator *g, int64_t tokens)
{
    int64_t n = GENERATE_MOST;

    while (n > GENERATE_TOGETHER &&
           kv_cache_bytes(g->m, tokens, n) > (double)CACHE_BYTES)
        n /= 2;
    return n;
}

int generator_begin_several(struct generator *g, int64_t sequences,
                            int64_t tokens, struct err *e)
{
    if (g->cache && tokens <= g->cache_tokens && sequences == g->sequences)
        return kv_cache_clear(g->cache, e);
    kv_cache_release(g->cache);
    g->cache = NULL;
    if (reserve_outputs(g, sequences, e) < 0 ||
        kv_cache_create(&g->cache, g->m, tokens, sequences, e) < 0)
        return e->code;
    g->cache_tokens = tokens;
    g->sequences = sequences;
    return 0;
}

static int run_layer(struct generator *g, int64_t i, struct err *e)
{
    struct mixture *x = g->kept[i] ? &g->mixture[i] : NULL;
    struct state *s = &g->state;

    s->at = POINT_IN;
    if (x) {
        if (mixture_restart(x, s->rows, e) < 0 ||
            layer_run(g->layer[i], s, POINT_MLP_IN, NULL, e) < 0 ||
            mixture_take(x, s, 0, e) < 0)
            return e->code;
    }
    if (layer_run(g->layer[i], s, POINT_OUT, NULL, e) < 0)
        return e->code;
    if (!x)
        return 0;
    if (mixture_run(x, NULL, NULL, NULL, e) < 0)
        return e->code;
    return mixture_add(x, s->x, 0, s->rows, e);
}

/* The next n tokens of each sequence. */
static int run_chunk(struct generator *g, const int32_t *ids, int64_t n,
                     struct err *e)
{
    struct state *s = &g->state;
    int64_t length[GENERATE_MOST];

    for (int64_t i = 0; i < g->sequences; i++)
        length[i] = n;
    if (kv_cache_length(g->cache) + n > g->cache_tokens)
        return err_set(e, E_BUG, "more tokens than were said");
    if (state_prepare(s, g->m, POINT_IN, length, g->sequences, e) < 0)
        return e->code;
    s->cache = g->cache;
    if (model_embed(g->m, ids, s->rows, g->embedded, e) < 0 ||
        model_put(g->m, s->x, g->embedded,
                  (size_t)(s->rows * s->row) *
                      (s->dtype == DT_BF16 ? sizeof(uint16_t) : sizeof(float)),
                  e) < 0)
        return e->code;
    for (int64_t i = 0; i < model_config(g->m)->n_layers; i++)
        if (run_layer(g, i, e) < 0)
            return e->code;
    kv_cache_advance(g->cache, n);
    return 0;
}

struct check {
    const struct generator *g;
    struct threads_error error;
};

static void check_rows(void *ctx, size_t begin, size_t end)
{
    struct check *j = ctx;
    size_t vocab = (size_t)model_config(j->g->m)->vocab_size;
    struct err e;

    for (size_t i = begin * vocab; i < end * vocab; i++)
        if (!isfinite(j->g->logits[i])) {
            (void)!err_set(&e, E_DATA,
                           "logits behind token %lld are not finite",
                           (long long)kv_cache_length(j->g->cache));
            threads_error_add(&j->error, begin, &e);
            return;
        }
}

/* Of the last token of each sequence. */
static int find_logits(struct generator *g, const float **logits, struct err *e)
{
    const struct model_config *c = model_config(g->m);
    struct check check = { .g = g };
    int64_t n = g->sequences;

    if (head_norm(g->head, state_x(&g->state, g->state.rows - n), n, g->normed,
                  e) < 0 ||
        head_logits(g->head, g->normed, n, 0, c->vocab_size, g->logits,
                    c->vocab_size, e) < 0)
        return e->code;
    threads_error_init(&check.error);
    threads_for((size_t)n, 1, check_rows, &check);
    *logits = g->logits;
    return threads_error_take(&check.error, e);
}

int generator_append(struct generator *g, const int32_t *ids, int64_t n,
                     const float **logits, struct err *e)
{
    for (int64_t at = 0, part; at < n; at += part) {
        part = n - at < CHUNK ? n - at : CHUNK;
        if (run_chunk(g, ids + at, part, e) < 0)
            return e->code;
    }
    return find_logits(g, logits, e);
}

int generator_draw_each(struct generator *g, int32_t *ids,
                        const double *uniform, const int32_t *banned,
                        int64_t bans, struct err *e)
{
    int64_t n = g->sequences;

    return run_chunk(g, ids, 1, e) < 0 ||
                   head_norm(g->head, g->state.x, n, g->normed, e) < 0 ?
               e->code :
               head_draw(g->head, g->normed, n, uniform, banned, bans, ids, e);
}

int generator_append_each(struct generator *g, const int32_t *ids,
                          const float **logits, struct err *e)
{
    return run_chunk(g, ids, 1, e) < 0 ? e->code : find_logits(g, logits, e);
}
