/* prunedout.h - config and expert map of a checkpoint from which experts were
 * pruned. */
#ifndef FORGE_PRUNEDOUT_H
#define FORGE_PRUNEDOUT_H

#include "checkpoint/expertmap.h"

struct outdir;

/* Replace the number of experts in *config, JSON text in malloced memory, which
 * is freed and set anew.  EXPERTS_REMAP also adds the router's width
 * ("num_router_experts") and the map's file ("expert_map").  E_CONFIG: *config
 * has no number of experts; E_TEMP. */
MUST_CHECK int pruned_config(const struct expert_map *m, enum expert_mode mode,
                             char **config, struct err *e);
/* Write a safetensors file with the tensor "expert_map", I32 [L, E]: the new
 * number of each of E experts in the L layers of the source `model`, -1:
 * pruned, or a layer without experts. */
MUST_CHECK int pruned_map(const struct expert_map *m, const char *model,
                          const struct outdir *o, struct err *e);

#endif
