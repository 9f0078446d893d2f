/* mixedgrid.h - lists the modules of a quantized checkpoint whose grids differ from
 * those of most, for the quantization_config. */
#ifndef FORGE_MIXEDGRID_H
#define FORGE_MIXEDGRID_H

#include "arch/config.h"
#include "shard/complete.h"
#include "shard/plainlist.h"

enum { MIXED_KINDS = 32 };

/* The group of a linear that has one for all of its inputs, where the config says
 * so instead of their number. */
enum { GROUP_WHOLE = 0 };

/* What the config says of most, and kinds of grids other than that.  modules: paths,
 * in which "*" stands for a number: "model.layers.*.mlp.down_proj" where all layers
 * are alike, "model.layers.3.mlp.experts" for all experts of a layer. */
struct mixed_grids {
    struct mixed_kind {
        struct module_grid grid;
        struct names modules;
    } kind[MIXED_KINDS];
    size_t n;
    uint64_t group; /* of most: that of the facts, or GROUP_WHOLE */
};

/* Fill *m from the checkpoint's tensors; mixed_release() when done, also after an
 * error.  E_TEMP; E_CONFIG: more than MIXED_KINDS. */
MUST_CHECK int mixed_collect(struct mixed_grids *m, const struct named_set *out,
                             const struct model_config *config,
                             const struct run_facts *facts, struct err *e);
void mixed_release(struct mixed_grids *m);

#endif
