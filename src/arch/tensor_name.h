/* tensor_name.h - names of tensors, modules and frames, taken apart and put together.
 *
 *     model.layers.3.self_attn.q_proj.weight   a tensor of a checkpoint
 *     model.layers.3.mlp.experts.17.up_proj    a module: a linear of an expert
 *     model.layers.3.mlp.experts.17.in.drift   a frame: the companion of an activation
 *     model.layers.3                           a frame: hidden states
 *
 * that is, each part with a dot in front unless it is the first,
 *
 *     ["model.layers." LAYER] [EXPERTS "." EXPERT] [PART] [COMPANION] */
#ifndef FORGE_TENSOR_NAME_H
#define FORGE_TENSOR_NAME_H

#include "common/base.h"

enum {
    TENSOR_NAME_MAX = 256,       /* of names that we make, with the NUL */
    TENSOR_NUMBER_END = 1 << 20, /* above all numbers of layers and experts */
    EXPERT_ANY = -2              /* "*": for names that are alike but for it */
};

/* What a frame is beside the activation, hidden states or module in front of
 * whose companion its name stands: "NAME.drift" belongs to "NAME".
 * x is an activation of the quantized model, x_ref the reference's. */
enum companion {
    COMPANION_NONE,
    COMPANION_DRIFT,  /* ".drift": x_ref - x */
    COMPANION_OUTPUT, /* ".output": what the linear at x should put out */
    COMPANION_GAP,    /* ".gap": the same less W_ref x */
    COMPANION_GRADIENT, /* ".gradient": of the loss, by what the module puts out */
    COMPANION_ORIGINAL, /* ".original": hidden states of the reference */
    COMPANIONS
};

struct name_text {
    const char *at;
    size_t len; /* 0: there is none */
};

struct tensor_name {
    int64_t layer;            /* -1: not inside a layer */
    int64_t expert;           /* -1: not of a routed expert; EXPERT_ANY */
    struct name_text experts; /* "mlp.experts"; of an expert's alone */
    struct name_text part; /* "self_attn.q_proj.weight", "up_proj", "attn_in" */
    enum companion companion;
};

/* Take a name apart; its texts point into it.  Numbers are decimal, without
 * leading zeros and below TENSOR_NUMBER_END; what is not of the form above is
 * part, all of it, so that every name comes back from tensor_name_format(). */
void tensor_name_parse(struct tensor_name *n, const char *name);
/* Its layer alone, and whether it is of a routed expert. */
int64_t tensor_name_layer(const char *name);
bool tensor_name_is_expert(const char *name);
/* Put it together, as snprintf(3): cut to cap - 1 bytes, and the length that
 * it has. */
size_t tensor_name_format(const struct tensor_name *n, char *to, size_t cap);

/* "model.layers.LAYER.PART" of a part that is one of ours, or of a family's. */
void layer_tensor_name(int64_t layer, const char *part,
                       char to[TENSOR_NAME_MAX]);

/* ".drift"; "" of COMPANION_NONE. */
const char *companion_suffix(enum companion c);
/* What a name is the companion of: *len bytes of it. */
enum companion companion_of(const char *name, size_t *len);

#endif
