/* prunedout.h - what a checkpoint with fewer experts has besides its tensors. */
#ifndef FORGE_PRUNEDOUT_H
#define FORGE_PRUNEDOUT_H

#include "checkpoint/expertmap.h"

struct outdir;

/* *config, JSON text, with the number of experts replaced; *config is freed
 * and set anew.  In EXPERTS_REMAP it also says how wide the router is
 * ("num_router_experts"), and where the map is ("expert_map").  E_CONFIG: it
 * has no number of experts. */
MUST_CHECK int pruned_config(const struct expert_map *m, enum expert_mode mode,
                             char **config, struct err *e);
/* Write the map as a tensor "expert_map", I32 [L, E], -1 for pruned, for the L
 * layers of the source `model`; one without experts has -1 alone. */
MUST_CHECK int pruned_map(const struct expert_map *m, const char *model,
                          const struct outdir *o, struct err *e);

#endif
