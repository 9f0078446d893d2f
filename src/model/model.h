/* model.h - the forward pass of a transformer, one layer at a time.
 *
 * A model is opened once; a layer's weights are loaded, run over all
 * sequences, and released before the next layer.  Sequences are run in
 * batches, because matrix products are fast from about a thousand rows on;
 * attention stays inside each sequence.
 *
 * A decoder layer is a chain of points at which a run can stop:
 *
 *     IN --norm--> ATTN_IN --q,k,v, RoPE, attention--> ATTN_OUT --o, +x-->
 *        --norm--> MLP_IN --gate, up, silu--> MLP_MID --down, +x--> OUT
 *
 * With multi-head latent attention, Q_LAT lies between ATTN_IN and ATTN_OUT:
 *
 *     ATTN_IN --q_a, norm--> Q_LAT --q_b; kv_a, kv_b, attention--> ATTN_OUT
 *
 * and where kv_b is one of the linears (model_config.kv_b), KV_LAT behind it:
 *
 *     Q_LAT --kv_a, norm--> KV_LAT --kv_b; q_a, q_b, attention--> ATTN_OUT
 *
 * In a mixture of experts the chain from MLP_IN to OUT is that of the shared
 * expert; the routed experts are run by moe.h.
 *
 * The state of a batch is the residual stream x and, at a point between IN and
 * OUT, the activation that the next linears read.
 *
 * Precision (enum dtype): DT_F32: everything is f32.  DT_BF16: weights, the
 * residual stream, and inputs and outputs of linears are bf16 (rounded to
 * nearest even); products accumulate in f32; norms, RoPE, softmax and silu are
 * computed in f32.  "Elements" below are float or uint16_t (bf16)
 * accordingly. */
#ifndef FORGE_MODEL_H
#define FORGE_MODEL_H

#include "arch/config.h"
#include "arch/device_bytes.h"
#include "checkpoint/checkpoint.h"
#include "model/quantized.h"
#include "model/remap.h"
#include "model/scratch.h"

/* Points of a layer. */
enum point {
    POINT_IN,
    POINT_ATTN_IN,
    POINT_Q_LAT,  /* only with latent attention that has a q_lora_rank */
    POINT_KV_LAT, /* only with latent attention, and model_config.kv_b */
    POINT_ATTN_OUT,
    POINT_MLP_IN,
    POINT_MLP_MID,
    POINT_OUT
};
/* "attn_in", "q_lat", ..., "mlp_mid"; "hidden" for POINT_IN and POINT_OUT. */
const char *point_name(enum point p);
/* The activation at a point; IN_COUNT at POINT_IN and POINT_OUT. */
enum input_class point_input(enum point p);
/* Elements of a row of it; model_row() at POINT_IN and POINT_OUT. */
int64_t point_width(const struct model_config *c, int64_t layer, enum point p);
/* Whether the layer has this point: no POINT_Q_LAT without a query latent, no
 * POINT_KV_LAT without model_config.kv_b, no POINT_MLP_MID in a mixture without shared expert.  layer_run() skips points
 * that do not exist. */
bool point_exists(const struct model_config *c, int64_t layer, enum point p);
/* Whether the linear that reads this point adds its output to the residual
 * stream: x at the next point = x + W act + b.  True for o and down, but not
 * for the down of a gated shared expert. */
bool point_adds(const struct model_config *c, int64_t layer, enum point p);

struct model;

/* Read config.json and the headers of the checkpoint.  dtype: DT_F32 or
 * DT_BF16, of the computation.  Errors as model_config_read() and
 * checkpoint_open(). */
MUST_CHECK int model_open(struct model **m, const char *dir, enum dtype dtype,
                          struct err *e);
void model_close(struct model *m); /* NULL is allowed */
/* Whether the checkpoint has every tensor that the forward pass reads, by running
 * the code that loads them without reading; and model_supports() and
 * model_warn_of_length(), length 0: any.  head: predictions are wanted; else a model
 * stored without an output head will do (checkpoint_headless()).  E_DATA: one is
 * missing, or has not the type and shape that config.json says; E_CONFIG: no head; else
 * as model_open(). */
MUST_CHECK int model_look(const char *dir, int64_t length, bool head,
                          struct err *e);
/* Whether it has no output head (checkpoint_headless()), and none tied to the
 * embedding: no logits. */
bool model_headless(const struct model *m);
/* Before anything is loaded: kv_b_proj is one of the linears
 * (model_config.kv_b), if the model has one. */
void model_list_kv_b(struct model *m);

/* Weights that are being tuned. */
struct tuning {
    void *ctx;
    /* *w [rows, cols], f32, malloced: the weights of a linear on the host.  1; 0: it is
     * not tuned, and the checkpoint's are used; errors.  From any thread. */
    int (*weights)(void *ctx, const char *module, int64_t rows, int64_t cols,
                   float **w, struct err *e);
    /* The same on a device: elements in its memory, which stay there, or NULL.  From any
     * thread. */
    const void *(*there)(void *ctx, const char *module);
    /* *g [rows, cols], where layers run: to which the backward pass adds the gradient
     * with respect to them; NULL: it is not tuned. */
    int (*gradient)(void *ctx, const char *module, int64_t rows, int64_t cols,
                    float **g, struct err *e);
};
/* From now on use the tuned weights in forward and backward passes, which on the host
 * run in f32; NULL: those of the checkpoint. */
void model_tune(struct model *m, const struct tuning *t);

struct forward_table; /* model/forward_table.h */
struct cuda_context;
extern struct plugin_table forward_plugin; /* for device_open() */
/* Before anything is loaded: run layers on the device that device_open()
 * opened, if there is one and model_run_on() succeeds or device_declined()
 * says otherwise.  longest: tokens of the longest sequence. */
MUST_CHECK int model_use_device(struct model *m, int64_t longest,
                                struct err *e);
/* Before anything is loaded: run layers on the device c with the functions
 * `on`.  From then on "device memory" below is the device's; without this call
 * it is the host's.  Weights, states and the pointers of all functions below
 * are device memory, unless they are called the host's.  E_TEMP: no memory for
 * the largest layer; E_CONFIG: the device does not support the model. */
MUST_CHECK int model_run_on(struct model *m, const struct forward_table *on,
                            struct cuda_context *c, struct err *e);
/* Bytes of device memory that the largest layer takes with BATCH_ROWS rows. */
double model_device_bytes(const struct model *m);
/* Whether device memory is not the host's. */
bool model_on_device(const struct model *m);
/* n zeroed bytes of device memory.  spill: if the device's memory is full,
 * host memory that the device can access will do; *spilled (or NULL) tells.
 * E_TEMP. */
MUST_CHECK int model_alloc(const struct model *m, void **p, size_t n,
                           bool spill, bool *spilled, struct err *e);
/* Free device memory.  NULL is allowed. */
void model_free(const struct model *m, void *p);
/* Bytes of device memory that states may take, so that the largest layer still
 * fits; SIZE_MAX on the host. */
MUST_CHECK int model_spare_bytes(const struct model *m, size_t *n,
                                 struct err *e);
/* Reserve n rows of H elements of device memory. */
MUST_CHECK int model_reserve_rows(const struct model *m, struct buffer *b,
                                  int64_t n, struct err *e);
/* Memory of a buffer that was reserved on the device, or the host's. */
void model_buffer_release(const struct model *m, struct buffer *b);
/* Copy n bytes: host to device memory, back, and within device memory. */
MUST_CHECK int model_put(const struct model *m, void *to, const void *host,
                         size_t n, struct err *e);
MUST_CHECK int model_get(const struct model *m, void *host, const void *from,
                         size_t n, struct err *e);
MUST_CHECK int model_copy(const struct model *m, void *to, const void *from,
                          size_t n, struct err *e);
/* to[rows, n] = a - b - bias in device memory, elements; bias [n] or NULL.
 * Computed in f32, rounded once to the type of the elements. */
MUST_CHECK int model_subtract(const struct model *m, void *to, const void *a,
                              const void *b, const float *bias, int64_t rows,
                              int64_t n, struct err *e);
const struct model_config *model_config(const struct model *m);
enum dtype model_dtype(const struct model *m);
/* Of a checkpoint pruned with --mode remap (model/remap.h): counts of the
 * tokens routed so far, over all layers; NULL for others. */
const struct remap_counts *model_remapped(const struct model *m);

/* ---- a batch of sequences ---- */

/* A batch of sequences at a point of a layer.  Zero-initialise, then
 * state_prepare(). */
struct state {
    enum point at;
    enum dtype dtype;
    int64_t row;               /* model_row() */
    int64_t n_sequences, rows; /* rows: number of tokens of all sequences */
    int64_t *first;            /* [n_sequences + 1] first row of each
                                * sequence; the host's */
    void *x;                   /* [rows, row] residual stream, which begins a
                                * row */
    void *act;                 /* [rows, point_width()] activation at the
                                * point; undefined at POINT_IN and POINT_OUT */
    void *end;                 /* memory where layer_run() leaves the final
                                * act; NULL: the state's own */
    void *output; /* [rows, H], device memory where layer_run() leaves
                * what o or down puts out in front of the norm behind it, if
                * the family has one; NULL: nowhere */
    bool host;    /* set before the first state_prepare(): x and act are the
                * host's; such a state is not run */
    struct kv_cache *cache; /* KV cache of the sequences; NULL: they begin
                        * here */
    /* private: the memory of first, x and act */
    const struct model *m;
    struct buffer firsts, xs, acts[2];
    int current;   /* index of the one in use */
    enum point to; /* target of layer_run() */
};

/* Set up s for n_sequences of length[i] tokens at point `at`: sets s->first,
 * and s->x and s->act have space for these rows, to be filled by the caller.
 * May be called any number of times; memory only grows.  E_CONFIG: a sequence
 * is longer than the model supports (dynamic RoPE; on a device, an indexer);
 * E_TEMP. */
MUST_CHECK int state_prepare(struct state *s, const struct model *m,
                             enum point at, const int64_t *length,
                             int64_t n_sequences, struct err *e);
/* Allocate for this many rows and sequences, so that later calls of
 * state_prepare() for fewer keep the contents. */
MUST_CHECK int state_reserve(struct state *s, const struct model *m,
                             int64_t rows, int64_t n_sequences, struct err *e);
void state_release(struct state *s);
/* Row r of x, device memory (s->host: the host's). */
void *state_x(const struct state *s, int64_t r);
/* Most sequences of a batch (its rows: BATCH_ROWS), since each is padded to
 * ATTEND_KEYS keys. */
enum { BATCH_SEQUENCES = 256 };

/* ---- KV cache ---- */

/* The KV cache of one sequence, or of several that are as long: keys and values in all
 * layers, packed for attention, or on a device as rows.  A batch with s->cache has these
 * sequences, all of as many tokens, whose first token has position kv_cache_length();
 * layer_run() appends the keys and values of its layer.  When all layers have run, the
 * caller calls kv_cache_advance(). */
struct kv_cache;
/* Allocate for at most `tokens` tokens of each sequence.  E_CONFIG: as state_prepare();
 * several sequences with linear attention, with several residual streams or with an
 * indexer that leaves keys out; E_TEMP. */
MUST_CHECK int kv_cache_create(struct kv_cache **p, const struct model *m,
                               int64_t tokens, int64_t sequences,
                               struct err *e);
/* Its bytes, about. */
double kv_cache_bytes(const struct model *m, int64_t tokens, int64_t sequences);
void kv_cache_release(struct kv_cache *p); /* NULL is allowed */
/* Number of tokens in the cache. */
int64_t kv_cache_length(const struct kv_cache *p);
/* All layers have appended these rows. */
void kv_cache_advance(struct kv_cache *p, int64_t rows);
/* Start a new sequence.  E_DEVICE. */
MUST_CHECK int kv_cache_clear(struct kv_cache *p, struct err *e);

/* Whether all n elements are finite, of the memory where layers run. */
MUST_CHECK int model_check(const struct model *m, const void *p, int64_t n,
                           bool *finite, struct err *e);

/* ---- embedding ---- */

/* Load model.embed_tokens.weight in its stored type, until released. */
MUST_CHECK int model_load_embedding(struct model *m, struct err *e);
void model_release_embedding(struct model *m);
/* E_CONFIG: sequences of this length are not supported, wherever layers run. */
MUST_CHECK int model_supports(const struct model_config *c, int64_t length,
                              struct err *e);
/* A warning, once: sequences of this length are longer than max_position_embeddings.
 * Rotations go on behind the last position that the model was trained for, but what it
 * makes of them is not known. */
void model_warn_of_length(const struct model_config *c, int64_t length);
/* E_CONFIG: the model, where its layers run, does not support sequences of this
 * length; model_warn_of_length(). */
MUST_CHECK int model_check_length(const struct model *m, int64_t length,
                                  struct err *e);
/* E_DATA: one of n tokens is not in the vocabulary. */
MUST_CHECK int model_check_tokens(const struct model *m, const int32_t *tokens,
                                  int64_t n, struct err *e);
/* out[n, model_row()], elements, the host's = the rows of tokens in front of the
 * first layer: their embeddings.  E_DATA: a token is not in the vocabulary. */
MUST_CHECK int model_embed(const struct model *m, const int32_t *tokens,
                           int64_t n, void *out, struct err *e);
/* The same where layers run, of tokens that were checked. */
MUST_CHECK int model_embed_there(const struct model *m, const int32_t *tokens,
                                 int64_t n, void *out, struct err *e);

/* ---- layers ---- */

struct layer;

/* Load what is needed to run layer `index` between two points.  codes (or
 * NULL): a linear found there is used, dequantized, instead of the
 * checkpoint's.  E_DATA: a tensor is missing or has another shape than
 * config.json says; E_IO, E_TEMP. */
MUST_CHECK int model_load_layer(struct model *m, int64_t index, enum point from,
                                enum point to, const struct quantized *codes,
                                struct layer **l, struct err *e);
void layer_release(struct layer *l); /* NULL is allowed */
/* The bias [hidden_size] of the linear that reads point p (point_adds() is
 * true), device memory, which becomes the caller's (model_free()); NULL: it
 * has none.  Only after that linear has been run for the last time. */
float *layer_take_bias(struct layer *l, enum point p);

/* Callback for the activations of a run: called at each point that the run
 * reaches, its end included and its start not, except POINT_OUT, with s->at
 * and s->act.  A non-zero result stops the run and is returned. */
struct tap {
    int (*fn)(void *arg, const struct state *s, struct err *e);
    void *arg;
};

/* Run the batch from s->at to `to`, both within what was loaded, s->at <= to.
 * s->x is updated in place.  The final s->act is s->end if that is set, which
 * may be the memory of the initial s->act.  tap: NULL for none. */
MUST_CHECK int layer_run(struct layer *l, struct state *s, enum point to,
                         const struct tap *tap, struct err *e);

/* The activation of POINT_MLP_IN, where s is and from where l was loaded, from s->x
 * again, before layer_run(to): the same bits.  At POINT_IN every run begins so. */
MUST_CHECK int layer_mlp_in(struct layer *l, struct state *s, enum point to,
                            struct err *e);

/* ---- logits ---- */

/* Final norm and lm_head. */
struct head;

/* Load the final norm and lm_head, or the embedding if they are tied.  Errors
 * as model_load_layer(). */
MUST_CHECK int model_load_head(struct model *m, struct head **h, struct err *e);
/* Load the final norm alone: for head_norm(), and for a model without a head. */
MUST_CHECK int model_load_final_norm(struct model *m, struct head **h,
                                     struct err *e);
void head_release(struct head *h); /* NULL is allowed */
/* out[n, H] = final norm of x[n, model_row()]; elements.  out may be x. */
MUST_CHECK int head_norm(const struct head *h, const void *x, int64_t n,
                         void *out, struct err *e);
/* On a device: ids[n], the host's: tokens drawn by uniform[n], in 0..1, as struct
 * forward_draw says, without the banned.  E_DATA: a logit is not finite; E_CONFIG: the
 * vocabulary is too large. */
MUST_CHECK int head_draw(const struct head *h, const void *normed, int64_t n,
                         const double *uniform, const int32_t *banned,
                         int64_t bans, int32_t *ids, struct err *e);
/* logits[n, ld], f32, the host's: logits of vocabulary entries v0..v0+nv-1 for
 * normed[n, H].  v0 is a multiple of GEMM_COLS (bf16_gemm.h).  Fast from some
 * hundred rows on, and with nv = vocab_size or blocks of some thousand. */
MUST_CHECK int head_logits(const struct head *h, const void *normed, int64_t n,
                           int64_t v0, int64_t nv, float *logits, int64_t ld,
                           struct err *e);

#endif
