/* internal.h - what the files of src/model share: the inside of model.h. */
#ifndef FORGE_MODEL_INTERNAL_H
#define FORGE_MODEL_INTERNAL_H

#include "model/forward_table.h"
#include "model/kernels.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/scratch.h"

struct model {
    struct model_config config;
    struct checkpoint *ck;
    enum dtype dtype;
    bool bf16;
    size_t size; /* bytes of an element */
    const struct kernels *k;
    float scale; /* of attention scores */
    struct rope_table rope;
    /* where layers run, and their rows and weights are; NULL: on the host */
    const struct forward_table *on;
    struct cuda_context *context;
    struct buffer angles; /* rope.cs, on the device */
    int64_t turned;       /* its positions */
    /* elements [rows, ...]: what the linears of q, k and v say; with latent
     * attention key is kv_a's and value kv_b's */
    struct buffer q, key, value;
    struct buffer latent;         /* [rows, H or kv_lora_rank] elements */
    struct buffer keys, values;   /* packed for attention, f32 */
    struct buffer blocks;         /* struct block of keys, of queries */
    int32_t *expert_map;          /* [n_layers, n_router] of a checkpoint whose
                                   router is wider; NULL: others */
    struct remap_counts remapped; /* by it */
    void *embedding;              /* as stored; NULL: not loaded */
    enum dtype embedding_dtype;
};

/* A linear with its weights: elements [rows, cols] after product_pack(), or in 4
 * bits; bias f32 or NULL.  Once placed it is where layers run. */
struct loaded {
    struct linear of;
    void *w;
    struct forge_w4a16 *q; /* NULL: w */
    float *bias;
    const struct model *placed; /* NULL: w and bias are the host's */
};

struct layer {
    struct model *m;
    int64_t index;
    enum point from, to;
    struct loaded part[PARTS];              /* those that are there */
    float *norm1, *norm2, *q_norm, *k_norm; /* NULL where not needed */
    float *q_a_norm, *kv_a_norm;            /* of latents */
    float *shared_gate;                     /* [H] */
};

/* Norms of latents have this epsilon whatever the config says. */
#define LATENT_EPS 1e-6f

/* A norm weight or bias: n floats, rounded to bf16 in that mode, of the host. */
MUST_CHECK int model_vector(struct model *m, const char *name, int64_t n,
                            float **v, struct err *e);
/* A linear of the checkpoint as elements; E_DATA when its shape is another. */
MUST_CHECK int model_weight(struct model *m, const char *module, int64_t rows,
                            int64_t cols, void **w, struct err *e);
/* out = norm of n rows of the residual stream. */
MUST_CHECK int model_norm(const struct model *m, const void *x, const float *w,
                          int64_t n, void *out, struct err *e);
/* out[rows, n] = norms of rows of n elements of x, which lie ld apart; out may
 * be x where ld is n. */
struct norm {
    const void *x;
    int64_t rows, n, ld;
    const float *w;
    float eps;
    void *out;
};
MUST_CHECK int model_norm_rows(const struct model *m, const struct norm *j,
                               struct err *e);
struct routing;
/* Token `token` of `to` from score[experts], which holds its logits and
 * becomes its scores.  bias: of sigmoid, or NULL; choice: room for as many. */
void route_token(const struct moe *m, enum router_kind kind, const float *bias,
                 float *score, float *choice, const struct routing *to,
                 int64_t token);
/* lm_head, however stored; the embedding when the model is tied; NULL: *e. */
const char *model_head_module(const struct model *m, struct err *e);
/* g[n, h] += the gradient of n rows x, given gy[n, h], that of their norm with
 * weights w (backward.c). */
void backward_norm(const struct model *m, const void *x, const float *w,
                   const float *gy, int64_t n, float *g);
/* The way back through a norm of n numbers of each row x, which lie ld apart:
 * gy[rows, n], the gradient of what it says, makes g[rows, n], that of x, which
 * is added to, or replaces gy where it is gy. */
struct norm_back {
    const void *x;
    enum dtype dtype;
    int64_t n, ld;
    const float *w;
    double eps;
    const float *gy;
    float *g;
};
/* Of rows begin .. end - 1, for threads_for(). */
void backward_norm_rows(void *norm_back, size_t begin, size_t end);
/* A linear's weights and bias as the checkpoint has them, f32; l->of is given.
 * loaded_release() it, also after an error. */
MUST_CHECK int backward_load(struct model *m, struct loaded *l, struct err *e);
/* The way back through a layer's norms of heads, rope and softmax attention,
 * from go[rows, n_heads * v_dim], the gradient of what it puts out: q[rows,
 * n_heads * head_dim], k[rows, n_kv_heads * head_dim] and v[rows, n_kv_heads *
 * v_dim], as linears put them out, are replaced by their gradients. */
struct attend_back {
    struct model *m;
    int64_t layer, n_sequences;
    const int64_t *first;         /* [n_sequences + 1] first row of each */
    const float *q_norm, *k_norm; /* of a head; NULL: none */
    const float *go;
    float *q, *k, *v;
};
/* E_TEMP. */
MUST_CHECK int backward_attend(struct attend_back *a, struct err *e);
/* A linear's weights: from codes (NULL: none) if they are there, else the
 * checkpoint's; its bias if it has one.  l->of is given. */
MUST_CHECK int model_load_linear(struct model *m, const struct quantized *codes,
                                 struct loaded *l, struct err *e);
/* Its two parts: reading, which another thread may do, and placing. */
MUST_CHECK int model_read_linear(struct model *m, const struct quantized *codes,
                                 struct loaded *l, struct err *e);
MUST_CHECK int loaded_place(struct model *m, struct loaded *l, struct err *e);
void loaded_release(struct loaded *l);
/* Element i of p. */
static inline void *state_at(void *p, enum dtype t, int64_t i)
{
    return (char *)p + i * (t == DT_BF16 ? 2 : 4);
}

/* How a product ends: out = xW^T + b, out += xW^T + b, or
 * out = silu(x G^T + b) * (x U^T + b), where second is U. */
struct product {
    const struct model *m;
    const struct loaded *first, *second; /* second NULL: none */
    const void *x;
    int64_t rows;
    void *out; /* [rows, first->of.rows] */
    bool add;
};
MUST_CHECK int product_run(const struct product *p, struct err *e);
/* Every weight W[rows, cols] of a product passes through this once, after it
 * is loaded: bf16 is packed, in place or into memory that replaces *w. */
MUST_CHECK int product_pack(const struct model *m, int64_t rows, int64_t cols,
                            void **w, struct err *e);
/* f32 sums of a product, not rounded; first is a multiple of GEMM_COLS. */
MUST_CHECK int product_sums(const struct model *m, const struct forward_sums *s,
                            struct err *e);

/* ---- where layers run (place.c, device.c) ----
 *
 * Memory of rows and weights is the device's if the model has one, else the
 * host's; what is done to it, in the functions above, is done there. */

/* As buffer_reserve(); of the device new memory is not zero. */
MUST_CHECK int model_reserve(const struct model *m, struct buffer *b,
                             int64_t rows, int64_t cols, size_t size,
                             const char *what, struct err *e);
void model_buffer_release(const struct model *m, struct buffer *b);
/* n bytes at *p, of mem_alloc(), are moved to where layers run. */
MUST_CHECK int model_place(const struct model *m, void **p, size_t n,
                           struct err *e);
MUST_CHECK int device_norm(const struct model *m, const struct norm *j,
                           struct err *e);
MUST_CHECK int device_product(const struct product *p, struct err *e);
MUST_CHECK int device_sums(const struct model *m, const struct forward_sums *s,
                           struct err *e);
/* s->x += sigmoid(in g) * y, g of the shared expert: on the host, and there. */
void gate_run(struct layer *l, const struct state *s, const void *in,
              const void *y);
MUST_CHECK int device_gate(struct layer *l, const struct state *s,
                           const void *in, const void *y, struct err *e);
MUST_CHECK int device_attend(struct layer *l, const struct state *s, void *out,
                             struct err *e);

/* A sequence's longest length; E_CONFIG. */
MUST_CHECK int model_check_length(const struct model_config *c, int64_t length,
                                  struct err *e);
/* Of a sequence that goes on, by layer: keys and values [n_kv_heads][blocks]
 * blocks of ATTEND_KEYS, zero where none has come. */
struct past {
    int64_t tokens, length; /* room, and how many there are */
    int64_t blocks;
    size_t keys, values;  /* bytes of a layer */
    struct buffer memory; /* keys of layer 0, its values, keys of layer 1 ... */
};
/* Whether keys and values are packed as pairs of bf16, and the bytes of one. */
bool attention_pairs(const struct model *m);
/* Elements of a value, as kernels want them. */
int64_t attention_padded(const struct model_config *c);

/* q, k, v of m to act[rows, n_heads * dim]; window as in struct attend. */
MUST_CHECK int attention_run(struct layer *l, const struct state *s, void *out,
                             struct err *e);

#endif
