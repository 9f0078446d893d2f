/* complete.h - checks that a set of tensors is a complete checkpoint of a
 * model.
 *
 * Loaders do not check this: vLLM's check for missing weights is off for
 * quantized models, and a missing scale gives wrong results without an error.
 * forge-shard checks the plan before it copies anything, and the files
 * afterwards. */
#ifndef FORGE_COMPLETE_H
#define FORGE_COMPLETE_H

#include "arch/gridrules.h"
#include "checkpoint/checkpoint.h"
#include "layout/runfacts.h"

/* A tensor as a header describes it. */
struct named {
    const char *name;
    enum dtype dtype;
    int ndim;
    const uint64_t *dims;
};

/* Sorted by name (strcmp); named_sort() sorts. */
struct named_set {
    struct named *item; /* [n] */
    size_t n;
};

/* *set = the tensors of c, whose memory their names are.  free() set->item.
 * E_TEMP. */
MUST_CHECK int named_from_checkpoint(struct named_set *set,
                                     const struct checkpoint *c, struct err *e);
void named_sort(struct named_set *set);

struct completeness {
    const struct model_config *config;
    const struct run_facts *facts;  /* NULL: nothing is quantized */
    const struct named_set *source; /* the source model's; NULL: not compared */
    bool headless; /* there is no output head: checkpoint_headless() */
};

/* 0: every linear of the config is in the set, as a plain weight or with all
 * parts of its layout, in the right shapes and types; every tensor of the
 * source is there in its shape, or replaced by parts; and there is no other
 * tensor.  E_DATA otherwise, with the name; of tensors of the source that are missing with
 * the first's, and how many more there are. */
MUST_CHECK int complete_check(const struct completeness *c,
                              const struct named_set *out, struct err *e);

/* The grid of a quantized linear of `cols` inputs: that of the facts, or if these are
 * mixed what the shapes of its tensors say.  GPTQ's symmetry is that of the
 * facts. */
struct module_grid complete_grid(const struct named_set *out,
                                 const char *module, uint64_t cols,
                                 const struct run_facts *facts);
/* Whether the module is stored quantized in this set. */
bool complete_is_packed(const struct named_set *out, const char *module,
                        const struct run_facts *facts);

/* A walk along the quantized linears of a set, layer by layer; starts with the first
 * three members. */
struct packed_walk {
    const struct named_set *out;
    const struct model_config *config;
    const struct run_facts *facts;
    int64_t layer, number; /* of the next linear to look at */
    struct linear l;
    struct module_grid grid; /* of l: complete_grid() */
};
/* l and grid = the next ones; false: there is none. */
bool packed_next(struct packed_walk *w);

#endif
