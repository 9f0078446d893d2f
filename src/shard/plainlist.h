/* plainlist.h - lists the modules of a quantized checkpoint that are not
 * quantized, for the quantization_config: each loader wants such a list in its
 * own form (quantout.c). */
#ifndef FORGE_PLAINLIST_H
#define FORGE_PLAINLIST_H

#include "arch/config.h"
#include "layout/runfacts.h"

struct named_set;

struct names {
    char **item;
    size_t n, cap;
};

/* Append a copy of name[len].  E_TEMP. */
MUST_CHECK int names_add(struct names *l, const char *name, size_t len,
                         struct err *e);
/* The number of a name; l->n: it is not there. */
size_t names_find(const struct names *l, const char *name);
void names_release(struct names *l);

/* Modules with an unquantized matrix as weight, except embeddings.
 *
 *     below   paths below which nothing is quantized: a layer beyond the
 *             config's ("model.layers.61", multi-token prediction), the experts
 *             of a layer ("model.layers.3.mlp.experts")
 *     module  all others, each by its path, "lm_head" first
 *     common  [module.n]: kind[] covers this module as well
 *     kind    paths inside a layer that are quantized in no layer, and
 *             unquantized in several: "self_attn.kv_b_proj"; "*" stands for
 *             the number of an expert */
struct plain_list {
    struct names below, module, kind;
    bool wrapped;         /* a multimodal model, or one stored without the class
                           * around it: loaders differ in what they call what
                           * stands before its layers */
    struct names outside; /* then: its other parts, "visual", of which nothing
                           * is quantized; they are in no other list */
    bool *common;
    struct names
        suffix;     /* paths inside a layer of the quantized modules, if all
                            layers have the same and there are no experts */
    bool in_layers; /* an unquantized module lies inside the layers */
};

/* Fill *p from the checkpoint's tensors; bare: checkpoint_bare().  plain_release()
 * when done, also after an error.  E_TEMP. */
MUST_CHECK int plain_collect(struct plain_list *p, const struct named_set *out,
                             const struct model_config *config, bool bare,
                             const struct run_facts *facts, struct err *e);
void plain_release(struct plain_list *p);

#endif
