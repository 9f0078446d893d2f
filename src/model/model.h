/* model.h - what a transformer computes, one layer at a time.
 *
 * A model is opened once; a layer's weights are loaded, run over all
 * sequences, and released before the next one.  Sequences are run in small
 * batches, because matrix products want a thousand rows; attention stays
 * inside each sequence.
 *
 * A decoder layer is a path with places to stop:
 *
 *   IN --norm--> ATTN_IN --q,k,v, rope, attention--> ATTN_OUT --o, +x-->
 *      --norm--> MLP_IN --gate, up, silu--> MLP_MID --down, +x--> OUT
 *
 * With latent attention Q_LAT lies between ATTN_IN and ATTN_OUT:
 *
 *   ATTN_IN --q_a, norm--> Q_LAT --q_b; kv_a, kv_b, attention--> ATTN_OUT
 *
 * In a mixture of experts the path from MLP_IN to OUT is that of the shared
 * expert; what the routed ones add to x is computed by moe.h.
 *
 * The state of a batch is the residual stream x and, at the places in the
 * middle, the activation that the next linears read.
 *
 * Precision (enum dtype): DT_F32: everything is f32.  DT_BF16: weights, the
 * residual stream, and inputs and outputs of linears are bf16 (rounded to
 * nearest even); products accumulate in f32; norms, rope, softmax and silu are
 * computed in f32.  "Elements" below are float or uint16_t accordingly. */
#ifndef FORGE_MODEL_H
#define FORGE_MODEL_H

#include "arch/config.h"
#include "arch/device_bytes.h"
#include "checkpoint/checkpoint.h"
#include "model/quantized.h"
#include "model/remap.h"
#include "model/scratch.h"

enum point {
    POINT_IN,
    POINT_ATTN_IN,
    POINT_Q_LAT, /* only with latent attention that has a q_lora_rank */
    POINT_ATTN_OUT,
    POINT_MLP_IN,
    POINT_MLP_MID,
    POINT_OUT
};
/* "attn_in", "q_lat", ..., "mlp_mid"; "hidden" for POINT_IN and POINT_OUT. */
const char *point_name(enum point p);
/* The activation held at a point; IN_COUNT at POINT_IN and POINT_OUT. */
enum input_class point_input(enum point p);
/* Its width: inputs C of the linears that read it; hidden_size at the ends. */
int64_t point_width(const struct model_config *c, int64_t layer, enum point p);
/* Whether the layer's path has this point: no POINT_Q_LAT without a latent,
 * no POINT_MLP_MID in a mixture without a shared expert.  layer_run() goes
 * past what is not there. */
bool point_exists(const struct model_config *c, int64_t layer, enum point p);
/* Whether the linear that reads this point writes into the residual stream: x
 * at the next point is x here plus what it puts out.  Not the down projection
 * of a shared expert whose output is gated. */
bool point_adds(const struct model_config *c, int64_t layer, enum point p);

struct model;

/* Reads config.json and the headers of the checkpoint.  dtype: DT_F32 or
 * DT_BF16.  Errors as model_config_read() and checkpoint_open(). */
MUST_CHECK int model_open(struct model **m, const char *dir, enum dtype dtype,
                          struct err *e);
void model_close(struct model *m); /* NULL is allowed */

struct forward_table; /* model/forward_table.h */
struct cuda_context;
extern struct plugin_table forward_plugin; /* for device_open() */
/* Before anything is loaded: layers run on the device that is open, if one is,
 * unless it declines (device.h). */
MUST_CHECK int model_use_device(struct model *m, struct err *e);
/* The same on a given one: layers run there, where states of sequences,
 * weights, and what functions below take and give are then, but for what is
 * called the host's.  E_TEMP: no room for the largest layer; E_CONFIG: a model
 * that it cannot run. */
MUST_CHECK int model_run_on(struct model *m, const struct forward_table *on,
                            struct cuda_context *c, struct err *e);
/* Bytes there that the largest layer takes with a batch of BATCH_ROWS rows. */
double model_device_bytes(const struct model *m);
/* Whether they do. */
bool model_apart(const struct model *m);
/* Memory where layers run, zero.  Of a device with `spill` it may be the host's,
 * as fast as the way there; *spilled says so (NULL: not asked for). */
MUST_CHECK int model_alloc(const struct model *m, void **p, size_t n,
                           bool spill, bool *spilled, struct err *e);
void model_free(const struct model *m, void *p); /* NULL is allowed */
/* Bytes that states may take there, leaving room for what layers need, and other
 * programs; SIZE_MAX: any number. */
MUST_CHECK int model_spare(const struct model *m, size_t *n, struct err *e);
/* To there, from there, and there. */
MUST_CHECK int model_put(const struct model *m, void *to, const void *host,
                         size_t n, struct err *e);
MUST_CHECK int model_get(const struct model *m, void *host, const void *from,
                         size_t n, struct err *e);
MUST_CHECK int model_copy(const struct model *m, void *to, const void *from,
                          size_t n, struct err *e);
/* to = a - b - bias of rows of n elements, there; bias[n], or NULL.  Each step
 * is rounded to f32, the result to the elements' type. */
MUST_CHECK int model_subtract(const struct model *m, void *to, const void *a,
                              const void *b, const float *bias, int64_t rows,
                              int64_t n, struct err *e);
const struct model_config *model_config(const struct model *m);
enum dtype model_dtype(const struct model *m);
/* What became of the choices of pruned experts so far, in all layers: of a
 * checkpoint whose router is wider than its experts are many
 * (model/remap.h); NULL: of any other. */
const struct remap_counts *model_remapped(const struct model *m);

/* ---- a batch of sequences ---- */

struct state {
    enum point at;
    enum dtype dtype;
    int64_t hidden_size;
    int64_t n_sequences, rows; /* rows: tokens of all sequences together */
    int64_t *first;            /* [n_sequences + 1] first row of each */
    void *x;                   /* [rows, hidden_size] residual stream */
    void *act;                 /* [rows, width of the point], or undefined */
    void *end;                 /* where layer_run() leaves act, or NULL: own */
    bool host; /* set before it is first prepared: x and act are the host's, and
                  it is not run */
    struct past *past; /* of the one sequence, or NULL: it begins here */
    /* private: what x, act and first point into */
    const struct model *m;
    struct buffer firsts, xs, acts[2];
    int current;   /* of acts */
    enum point to; /* where layer_run() goes */
};

/* *s starts zeroed and may be prepared again and again; memory grows to the
 * largest batch and is released once.  After it s->first is set, s->x and
 * s->act have room for the rows at point `at`, and their content is the
 * caller's to fill.  E_CONFIG: a sequence is longer than a model with
 * dynamic rope may run. */
MUST_CHECK int state_prepare(struct state *s, const struct model *m,
                             enum point at, const int64_t *length,
                             int64_t n_sequences, struct err *e);
/* Room for this many rows and sequences, so that a later state_prepare() of
 * less keeps what was filled in. */
MUST_CHECK int state_reserve(struct state *s, const struct model *m,
                             int64_t rows, int64_t n_sequences, struct err *e);
void state_release(struct state *s);
/* Row r of x. */
void *state_x(const struct state *s, int64_t r);
/* Sequences of a batch at most (of its rows BATCH_ROWS), because each is padded to
 * ATTEND_KEYS keys. */
enum { BATCH_SEQUENCES = 256 };

/* ---- going on with a sequence ---- */

/* The keys and values of a sequence's tokens in all layers, as attention reads
 * them.  A batch with s->past is one sequence whose first token has the position
 * past_length(); its layers add their keys and values, and past_advance() says
 * that all layers have. */
struct past;
/* Room for so many tokens.  E_CONFIG: as state_prepare(); E_TEMP: no memory. */
MUST_CHECK int past_create(struct past **p, const struct model *m,
                           int64_t tokens, struct err *e);
void past_release(struct past *p); /* NULL is allowed */
int64_t past_length(const struct past *p);
void past_advance(struct past *p, int64_t rows);
/* As if nothing had come. */
void past_clear(struct past *p);

/* Whether n elements are neither infinite nor NaN: of the host, and where
 * layers run. */
bool model_finite(const struct model *m, const void *p, int64_t n);
MUST_CHECK int model_check(const struct model *m, const void *p, int64_t n,
                           bool *finite, struct err *e);

/* ---- embedding ---- */

/* Load model.embed_tokens.weight, as stored (kept until released). */
MUST_CHECK int model_load_embedding(struct model *m, struct err *e);
void model_release_embedding(struct model *m);
/* out[n, H] elements of the host = rows of the embedding.  E_DATA: a token is not in the
 * vocabulary. */
MUST_CHECK int model_embed(const struct model *m, const int32_t *tokens,
                           int64_t n, void *out, struct err *e);

/* ---- layers ---- */

struct layer;

/* Load what is needed to run layer `index` between two points.  codes: linears
 * found there are used dequantized in place of the checkpoint's; NULL: none.
 * E_DATA: a tensor is missing, or has another shape than the config says. */
MUST_CHECK int model_load_layer(struct model *m, int64_t index, enum point from,
                                enum point to, const struct quantized *codes,
                                struct layer **l, struct err *e);
void layer_release(struct layer *l); /* NULL is allowed */
/* The bias [hidden_size] of the linear that writes into the residual stream from
 * this point (point_adds()), which has been run: the caller's to give to
 * model_free(); NULL: it has none. */
float *layer_take_bias(struct layer *l, enum point p);

/* Called at each of the middle points that a run reaches (also where it
 * ends, not where it starts): s->at, s->act.  Non-zero stops the run. */
struct tap {
    int (*fn)(void *arg, const struct state *s, struct err *e);
    void *arg;
};

/* Run the batch from s->at to `to` (s->at <= to; both within what was
 * loaded, and points of this layer).  s->x is updated in place, s->act is then
 * s->end, which may be where it was at the start; with `to` POINT_OUT and
 * without s->end it is the state's own memory.  tap: NULL for none. */
MUST_CHECK int layer_run(struct layer *l, struct state *s, enum point to,
                         const struct tap *tap, struct err *e);

/* ---- logits ---- */

struct head;

/* The final norm and lm_head (tied: the embedding). */
MUST_CHECK int model_load_head(struct model *m, struct head **h, struct err *e);
void head_release(struct head *h); /* NULL is allowed */
/* out[n,H] = final norm of x[n,H]; elements.  May be the same memory. */
MUST_CHECK int head_norm(const struct head *h, const void *x, int64_t n,
                         void *out, struct err *e);
/* Logits (f32, not rounded) of tokens [v0, v0+nv) for normed[n,H], into the host's
 * logits[n, ld].  Fast from some hundred rows on; nv of vocab_size or blocks
 * of a few thousand. */
MUST_CHECK int head_logits(const struct head *h, const void *normed, int64_t n,
                           int64_t v0, int64_t nv, float *logits, int64_t ld,
                           struct err *e);

#endif
