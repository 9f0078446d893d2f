/* tensor_name.h - parses and formats the names of tensors, modules and frames.
 *
 *     model.layers.3.self_attn.q_proj.weight   a tensor of a checkpoint
 *     model.layers.3.mlp.experts.17.up_proj    a module: a linear of an expert
 *     model.layers.3.mlp.experts.17.in.drift   a frame: companion of an activation
 *     model.layers.3                           a frame: hidden states
 *
 * that is, joined by dots,
 *
 *     ["model.layers" LAYER] [EXPERTS EXPERT] [PART] [COMPANION] */
#ifndef FORGE_TENSOR_NAME_H
#define FORGE_TENSOR_NAME_H

#include "common/base.h"

enum {
    TENSOR_NAME_MAX = 256, /* bytes of a name that we make, with its NUL */
    TENSOR_NUMBER_END = 1 << 20, /* layers and experts have smaller numbers */
    EXPERT_ANY = -2              /* formatted as "*", for a group of names
                                  * that differ only there */
};

/* Frames that accompany the activation, hidden states or module NAME are
 * called NAME.drift and so on.  x is the activation in the quantized model,
 * x_ref that in the reference (original) model, W_ref the original weight. */
enum companion {
    COMPANION_NONE,
    COMPANION_DRIFT,    /* ".drift": x_ref - x */
    COMPANION_OUTPUT,   /* ".output": the output that the linear at x should
                       * have */
    COMPANION_GAP,      /* ".gap": that output minus W_ref x */
    COMPANION_GRADIENT, /* ".gradient": of the loss, with respect to the
                         * module's output */
    COMPANION_ORIGINAL, /* ".original": hidden states of the reference model */
    COMPANIONS
};

/* A part of a string, without NUL. */
struct name_text {
    const char *at;
    size_t len; /* 0: absent */
};

/* A name in its parts; absent parts are empty. */
struct tensor_name {
    int64_t layer;            /* -1: outside the decoder layers */
    int64_t expert;           /* -1: not of a routed expert; or EXPERT_ANY */
    struct name_text experts; /* "mlp.experts"; empty if expert is -1 */
    struct name_text part; /* "self_attn.q_proj.weight", "up_proj", "attn_in" */
    enum companion companion;
};

/* Parse a name; texts of n point into it.  Numbers are decimal without leading
 * zeros, below TENSOR_NUMBER_END.  What does not fit the form above becomes
 * `part`, so tensor_name_format() gives every name back. */
void tensor_name_parse(struct tensor_name *n, const char *name);
/* Only the layer of a name, -1: none; only whether it is of a routed expert. */
int64_t tensor_name_layer(const char *name);
bool tensor_name_is_expert(const char *name);
/* Whether it is a rotary table, which old checkpoints store beside their
 * weights. */
bool tensor_name_is_table(const char *name);
/* Whether it is a scale of activations or caches: useless where engines do not round
 * these. */
bool tensor_name_is_other_scale(const char *name);
/* Format n into to[cap], truncated like snprintf(3); returns the full
 * length. */
size_t tensor_name_format(const struct tensor_name *n, char *to, size_t cap);

/* Rows (outputs) first..end-1 of a linear that has `of` of them.  Where linears are
 * solved in parts, MODULE.rows-FIRST-END-of-OF stands for them in place of
 * MODULE. */
struct name_rows {
    uint64_t first, end, of;
};
/* The rows that a name says; *len: length of the name without them.  False: none,
 * *len is all of it. */
bool name_rows_of(const char *name, size_t *len, struct name_rows *r);
/* to = the name of these rows of a module, cut to fit. */
void name_rows_format(const char *module, const struct name_rows *r,
                      char to[TENSOR_NAME_MAX]);

/* "model.layers.LAYER.PART". */
void layer_tensor_name(int64_t layer, const char *part,
                       char to[TENSOR_NAME_MAX]);

/* ".drift"; "" for COMPANION_NONE. */
const char *companion_suffix(enum companion c);
/* The companion that a name's suffix says; *len: length of the name without
 * it. */
enum companion companion_of(const char *name, size_t *len);

#endif
