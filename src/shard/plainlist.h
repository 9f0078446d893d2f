/* plainlist.h - which modules of a quantized checkpoint stay as they are.
 *
 * Loaders have to be told: each in a list of its own kind (quantout.c). */
#ifndef FORGE_PLAINLIST_H
#define FORGE_PLAINLIST_H

#include "arch/config.h"
#include "layout/runfacts.h"

struct named_set;

struct names {
    char **item;
    size_t n, cap;
};

/* Modules with a two-dimensional weight that stays as it is; embeddings are
 * not among them.
 *
 *     below   paths below which nothing is quantized: a layer behind the last
 *             ("model.layers.61"), the experts of a layer
 *             ("model.layers.3.mlp.experts")
 *     module  all others, each by its path, "lm_head" first
 *     common  [module.n] whether kind[] covers it as well
 *     kind    paths inside a layer that are quantized nowhere and plain in
 *             several layers: "self_attn.kv_b_proj", with "*" for the number
 *             of an expert */
struct plain_list {
    struct names below, module, kind;
    bool *common;
    struct names suffix; /* of the quantized modules inside a layer, when all
                            layers have the same and there are no experts */
    bool in_layers;      /* is one of them inside the layers? */
};

/* plain_release() when done, also after an error. */
MUST_CHECK int plain_collect(struct plain_list *p, const struct named_set *out,
                             const struct model_config *config,
                             const struct run_facts *facts, struct err *e);
void plain_release(struct plain_list *p);

#endif
