/* internal.h - the types and functions that the files of src/model share. */
#ifndef FORGE_MODEL_INTERNAL_H
#define FORGE_MODEL_INTERNAL_H

#include "model/forward_table.h"
#include "model/kernels.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/scratch.h"

struct backward_table; /* model/backward_table.h */

/* An open model, and work memory shared by its layers. */
struct model {
    struct model_config config;
    struct checkpoint *ck;
    enum dtype dtype;
    bool bf16;
    size_t size; /* bytes of an element */
    const struct kernels *k;
    float scale; /* attention scores are multiplied by it */
    struct rope_table rope, local_rope; /* of config.rope, config.local_rope */
    /* The device on which layers run and which holds their rows and weights;
     * NULL: the host. */
    const struct forward_table *on;
    const struct backward_table *back; /* the backward pass there; NULL: the
                                        * CPU's */
    double back_bytes;                 /* gradient_device_bytes(), with back */
    struct cuda_context *context;
    struct buffer angles[2]; /* copies of rope.cs and local_rope.cs on the
                              * device */
    int64_t angle_rows[2];   /* how many numbers are in them */
    /* Factors of queries by position, the host's, and a copy on the device;
     * how many there are. */
    struct buffer growth, growth_there;
    int64_t grown, grown_there;
    /* Outputs of the linears q, k, v: elements [rows, ...]; with latent
     * attention key is kv_a's output and value kv_b's. */
    struct buffer q, key, value;
    struct buffer latent;  /* work memory [rows, max(H, kv_lora)], elements */
    struct buffer both;    /* gate and up of a fused linear, elements */
    struct buffer side[2]; /* altup.c: [rows, H], elements */
    struct buffer keys, values; /* packed for attention */
    struct buffer blocks;       /* attention.c: struct block */
    /* indexer.c: outputs of wq_b and wk, weights of heads, positions of rows,
     * keys of the batch */
    struct buffer index_q, index_k, index_share, index_position, index_keys;
    struct buffer seen;           /* keys that queries see (indexer_run()) */
    int64_t seen_words;           /* 64-bit words of a row of it; 0: all keys */
    int32_t *expert_map;          /* [n_layers, n_router] of a --mode remap
                                   * checkpoint; else NULL */
    struct remap_counts remapped; /* see model_remapped() */
    struct altup_entry *entry;    /* goes with the embedding; NULL: none */
    void *embedding;              /* as stored; NULL: not loaded */
    const struct tuning *tuning;  /* model_tune(); NULL: none */
    bool looks; /* model_look(): what is loaded has no values */
    enum dtype embedding_dtype;
};

/* A linear with its weights W [rows, cols]: elements packed by product_pack(),
 * or 4-bit codes. */
struct loaded {
    struct linear of;
    void *w;
    struct forge_w4a16 *q;      /* 4-bit weights on the host; NULL: w */
    struct cuda_w4 *on_device;  /* the same on a device; NULL: w */
    struct ck_words words;      /* of them, until they are placed there */
    struct forward_codes codes; /* 4-bit weights for a device, until they are
                                 * placed; nibbles NULL: w */
    struct fp8_matrix fp8; /* 8-bit floats for a device, until they are placed,
                            * data and scale malloced; data NULL: w */
    float *bias;           /* [rows] f32, or NULL */
    const struct model *placed; /* w, on_device and bias are in its device
                                 * memory; NULL: the host's */
    bool borrowed;              /* w is there, and another's */
};

/* The weights of a layer that a run from point `from` to point `to` needs. */
struct delta_weights; /* delta.c */
struct mamba_weights; /* mamba.c */
struct index_weights; /* indexer.c */
struct altup_weights; /* altup.c */
struct altup_entry;   /* altup_ends.c */
struct layer {
    struct model *m;
    int64_t index;
    enum point from, to;
    struct loaded part[PARTS]; /* those needed between from and to */
    /* Norms; NULL: not needed, or the layer has none.  attn_out and mlp_out:
     * of what is added to the residual stream. */
    float *norm1, *norm2, *attn_out, *mlp_out, *q_norm, *k_norm;
    float *v_norm;               /* [v_dim], of each head of v */
    float *q_a_norm, *kv_a_norm; /* norms of the latents */
    float *shared_gate;          /* [H], or NULL */
    float *sinks;                /* [n_heads], or NULL */
    struct delta_weights *delta; /* of a layer with linear attention, or NULL */
    struct mamba_weights *mamba; /* of Mamba 2 instead, or NULL */
    struct altup_weights *altup; /* NULL: one residual stream */
    struct index_weights *indexer; /* NULL: not needed, or there is none */
};

/* Epsilon of the norms of latents: the default of DeepseekV2RMSNorm in
 * transformers, whatever config.json says. */
#define LATENT_EPS 1e-6f

/* A norm weight or bias: *v [n], f32 (in bf16 mode rounded to bf16), the
 * host's; free() it. */
MUST_CHECK int model_vector(struct model *m, const char *name, int64_t n,
                            float **v, struct err *e);
/* The same by its name in the layer: "self_attn.sinks". */
MUST_CHECK int layer_vector(struct layer *l, const char *part, int64_t n,
                            float **v, struct err *e);
/* The same where layers run; model_free() it. */
MUST_CHECK int layer_vector_there(struct layer *l, const char *part, int64_t n,
                                  float **v, struct err *e);
/* model_vector() for a norm's weight: 1 is added where the family stores it less 1. */
MUST_CHECK int model_norm_vector(struct model *m, const char *name, int64_t n,
                                 float **v, struct err *e);
/* A linear of the checkpoint as elements: *w [rows, cols], the host's; free()
 * it.  E_DATA: another shape. */
MUST_CHECK int model_weight(struct model *m, const char *module, int64_t rows,
                            int64_t cols, void **w, struct err *e);
/* The weights of a linear that are being tuned on a device: elements there, which stay;
 * NULL: they are not. */
const void *model_tuned_there(const struct model *m, const char *module);
/* E_DATA unless the module's weight [r, c] is [rows, cols]. */
MUST_CHECK int model_check_shape(const char *module, uint64_t r, uint64_t c,
                                 int64_t rows, int64_t cols, struct err *e);
/* out = RMS norm with weights w of n rows of the residual stream. */
MUST_CHECK int model_norm(const struct model *m, const void *x, const float *w,
                          int64_t n, void *out, struct err *e);
/* out[rows, n] = RMS norm of rows of n elements, leading dimension ld; out may
 * be x if ld is n. */
struct norm {
    const void *x;
    int64_t rows, n, ld;
    const float *w;
    float eps;
    void *out;
};
MUST_CHECK int model_norm_rows(const struct model *m, const struct norm *j,
                               struct err *e);
/* *w [n], malloced = 1: what a norm without weights has. */
MUST_CHECK int norm_ones(int64_t n, float **w, struct err *e);
struct routing;
/* Route one token: score[n_experts] holds its logits, and then its scores; the
 * result goes to entry `token` of `to`.  bias: correction bias or NULL; choice
 * [n_experts]: work memory. */
void route_token(const struct moe *m, enum router_kind kind, const float *bias,
                 float *score, float *choice, const struct routing *to,
                 int64_t token);
/* What forward_table.route() does behind the product, on the host: score [rows,
 * n_experts] holds x W^T, and then the scores; choice: as much work memory. */
void route_rows(const struct forward_route *a, float *score, float *choice);
/* Module of the lm_head's weights, the embedding's if they are tied; NULL: *e
 * is set. */
const char *model_head_module(const struct model *m, struct err *e);
/* Load the linear l->of: weights from codes (or NULL) if it is there, else
 * from the checkpoint, and its bias.  loaded_release() it. */
MUST_CHECK int model_load_linear(struct model *m, const struct quantized *codes,
                                 struct loaded *l, struct err *e);
/* The checkpoint's linear of this name in the layer, with no bias. */
MUST_CHECK int layer_linear(struct layer *l, const char *part, int64_t rows,
                            int64_t cols, struct loaded *to, struct err *e);
/* model_load_linear() in two steps: reading, which another thread may do, and
 * packing or moving to device memory. */
MUST_CHECK int model_read_linear(struct model *m, const struct quantized *codes,
                                 struct loaded *l, struct err *e);
MUST_CHECK int loaded_place(struct model *m, struct loaded *l, struct err *e);
void loaded_release(struct loaded *l);
void loaded_release_fp8(struct loaded *l); /* l->fp8 alone */
/* Address of element i of p. */
static inline void *state_at(void *p, enum dtype t, int64_t i)
{
    return (char *)p + i * (t == DT_BF16 ? 2 : 4);
}

/* The table of the layer's RoPE for at least n positions, and how many dims of
 * a head turn: 0 in a layer without RoPE. */
MUST_CHECK int model_rope(struct model *m, int64_t layer, int64_t n,
                          const float **cs, int64_t *rotary, struct err *e);

/* out[rows, first->of.rows] = x W^T + b; add: out += x W^T + b; with `second`
 * U: out = act(x W^T + b) * (x U^T + b2). */
struct product {
    const struct model *m;
    const struct loaded *first, *second; /* second may be NULL */
    const void *x;
    int64_t rows;
    void *out; /* [rows, first->of.rows] */
    bool add;
};
MUST_CHECK int product_run(const struct product *p, struct err *e);
/* n products of the same x and rows, none of which reads another's output: as
 * product_run() of each, but x is prepared once, and small ones keep all threads busy
 * together. */
enum { PRODUCTS_MOST = 3 };
MUST_CHECK int products_run(const struct product *p, int n, struct err *e);
/* Its parts on the host: for up to W4_FEW rows, if all weights have 4 bits; for one product
 * where rounded.h multiplies f32. */
MUST_CHECK int product_few(const struct product *p, int n, struct err *e);
MUST_CHECK int product_rounded(const struct product *p, struct err *e);
/* Output of row r, columns o..o+n-1, from the f32 sums y of first, u of second. */
void product_finish(const struct product *p, int64_t r, int64_t o, int64_t n,
                    const float *y, const float *u);
/* to [rows, outputs of w] = x W^T + b, elements, where layers run; `what` as in
 * model_reserve(). */
MUST_CHECK int product_into(struct buffer *to, const struct model *m,
                            const struct loaded *w, const void *x, int64_t rows,
                            const char *what, struct err *e);
/* Prepare weights W[rows, cols] for products, once after loading: bf16 is
 * packed (bf16_gemm.h), in place or into memory that replaces *w; f32 stays. */
MUST_CHECK int product_pack(const struct model *m, int64_t rows, int64_t cols,
                            void **w, struct err *e);
/* out[rows, n] = act(g) * u, elements; ldg, ldu: elements of their rows. */
struct gate_pair {
    const void *g, *u;
    int64_t ldg, ldu, rows, n;
    void *out;
};
MUST_CHECK int gate_pair(const struct model *m, const struct gate_pair *j,
                         struct err *e);
/* A product's f32 sums, not rounded; s->first is a multiple of GEMM_COLS. */
MUST_CHECK int product_sums(const struct model *m, const struct forward_sums *s,
                            struct err *e);

/* ---- device memory (place.c, device.c) ----
 *
 * Rows and weights are in device memory, which is the host's if m->on is NULL;
 * the functions above work on either. */

/* buffer_reserve() for device memory; on a device new memory is not zeroed. */
MUST_CHECK int model_reserve(const struct model *m, struct buffer *b,
                             int64_t rows, int64_t cols, size_t size,
                             const char *what, struct err *e);
/* Move n malloced bytes at *p to device memory; *p is then there. */
MUST_CHECK int model_place(const struct model *m, void **p, size_t n,
                           struct err *e);
/* E_TEMP, that "`what` `need` of GPU memory", if there is less. */
MUST_CHECK int device_fits(const struct forward_table *on,
                           struct cuda_context *c, const char *what,
                           double need, struct err *e);
/* E_CONFIG: layers on a device lack what the model has with sequences of so
 * many tokens. */
MUST_CHECK int model_check_lacks(const struct model *m, int64_t tokens,
                                 struct err *e);
/* How the model's gates are applied. */
static inline struct forward_gating model_gating(const struct model *m)
{
    const struct model_config *c = &m->config;

    return (struct forward_gating){ c->family->act, (float)c->gate_alpha,
                                    (float)c->gate_limit };
}
/* The device's part of model_norm_rows(), product_run(), gate_pair(),
 * product_sums(). */
MUST_CHECK int device_norm(const struct model *m, const struct norm *j,
                           struct err *e);
MUST_CHECK int device_product(const struct product *p, struct err *e);
MUST_CHECK int device_pair(const struct model *m, const struct gate_pair *p,
                           struct err *e);
MUST_CHECK int device_sums(const struct model *m, const struct forward_sums *s,
                           struct err *e);
/* s->x += sigmoid(in g) * y, g: the gate of the shared expert; on the host and
 * on the device. */
void gate_run(struct layer *l, const struct state *s, const void *in,
              const void *y);
MUST_CHECK int device_gate(struct layer *l, const struct state *s,
                           const void *in, const void *y, struct err *e);
/* x[n] += factor * y[n], elements, on the host; the product is rounded first. */
void model_add_row(const struct model *m, float factor, int64_t n,
                   const void *y, void *x);
/* forward_table.add_times(), where layers run. */
MUST_CHECK int model_add_times(const struct model *m,
                               const struct forward_add_times *a,
                               struct err *e);
/* Tokens of the longest of n sequences that begin at rows first[]. */
int64_t model_longest(const int64_t *first, int64_t n);
/* model_rope() with *cs where layers run. */
MUST_CHECK int model_angles(struct model *m, int64_t layer, int64_t longest,
                            const float **cs, int64_t *rotary, struct err *e);
/* *by: query_factor() of at least so many positions, where layers run; NULL:
 * the layer's queries do not grow. */
MUST_CHECK int model_growth(struct model *m, int64_t layer, int64_t longest,
                            const float **by, struct err *e);
/* The device's part of attention_run(). */
MUST_CHECK int device_attend(struct layer *l, const struct state *s, void *out,
                             struct err *e);

/* KV cache.  Per layer keys and values, [n_kv_heads, sequences * blocks] blocks of
 * ATTEND_KEYS keys each, zero beyond `length`; on a device [sequences, tokens] rows of
 * m->key and m->value. */
struct kv_cache {
    const struct model *m;
    int64_t tokens, length; /* of a sequence: capacity; number of tokens */
    int64_t sequences;
    int64_t blocks;       /* of a head, of a sequence */
    size_t keys, values;  /* bytes of a layer's keys, of its values */
    struct buffer memory; /* keys of layer 0, values of layer 0, keys of
                           * layer 1, ... */
    struct buffer delta;  /* [n_layers, delta_cached()] states and inputs of
                             * linear attention */
    struct buffer index;  /* [n_layers, tokens, dim] f32 keys of the indexer;
                             * empty: attention is dense for so many tokens */
};
/* Whether keys and values are packed as pairs of bf16 (else f32). */
bool attention_pairs(const struct model *m);
/* v_dim, padded for the kernels. */
int64_t attention_padded(const struct model_config *c);

/* out[n] *= sigmoid(g), g [n] elements: a head's output, f32, by its gates; on the
 * host. */
void attention_gate(const struct model *m, const void *g, int64_t n,
                    float *out);
/* out[rows, n_heads * v_dim] = attention of the batch, from m's q, key and
 * value; appends to s->cache. */
MUST_CHECK int attention_run(struct layer *l, const struct state *s, void *out,
                             struct err *e);

#endif
