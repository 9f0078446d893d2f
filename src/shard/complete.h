/* complete.h - does a set of tensors make a whole checkpoint of a model?
 *
 * Loaders do not ask: vLLM's check for missing weights is off for quantized
 * models, and a missing scale is silent garbage.  So we ask, of the plan
 * before anything is copied and of the files after. */
#ifndef FORGE_COMPLETE_H
#define FORGE_COMPLETE_H

#include "arch/config.h"
#include "checkpoint/checkpoint.h"
#include "layout/runfacts.h"

/* A tensor by what a header says of it. */
struct named {
    const char *name;
    enum dtype dtype;
    int ndim;
    const uint64_t *dims;
};

/* Sorted by name; named_sort() sorts. */
struct named_set {
    struct named *item;
    size_t n;
};

/* Names borrowed from c; free set->item. */
MUST_CHECK int named_from_checkpoint(struct named_set *set,
                                     const struct checkpoint *c, struct err *e);
void named_sort(struct named_set *set);

struct completeness {
    const struct model_config *config;
    const struct run_facts *facts;  /* NULL: nothing is quantized */
    const struct named_set *source; /* NULL: not compared */
};

/* E_DATA, with the tensor's name, unless: every linear of the config is there
 * in full, either plain or in all its parts, of the right shapes and types;
 * every tensor of the source is there with its shape or replaced by parts;
 * and nothing else is there. */
MUST_CHECK int complete_check(const struct completeness *c,
                              const struct named_set *out, struct err *e);

/* Is MODULE stored in 4 bits in this set? */
bool complete_is_packed(const struct named_set *out, const char *module,
                        const struct run_facts *facts);

#endif
