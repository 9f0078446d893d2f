/* expertmap.h - which experts of a mixture stay, and a checkpoint without the
 * others.
 *
 * forge-prune writes such a map: a stream with one `map` frame for each layer
 * that has experts, "model.layers.L.mlp", I32 [E]: the new number of each
 * expert, or -1.  Kept experts keep their order, so that groups of experts
 * stay groups. */
#ifndef FORGE_EXPERTMAP_H
#define FORGE_EXPERTMAP_H

#include "arch/config.h"
#include "checkpoint/checkpoint.h"

/* What becomes of a pruned model's router.  --mode of the tools. */
enum expert_mode {
    EXPERTS_PRUNE, /* it has the rows of the kept experts: a smaller model */
    EXPERTS_REMAP  /* it stays: the run time maps its choices (model/remap.h) */
};
#define EXPERT_MODES "prune|remap"

struct expert_layer {
    int64_t layer;
    int32_t *id;  /* [experts] new number, or -1 */
    int32_t *old; /* [kept] its inverse */
};

struct expert_map {
    int64_t experts, kept;      /* E and K, the same in all layers */
    struct expert_layer *layer; /* by number */
    size_t n;
};

/* Read a stream of map frames; other frames are skipped.  E_DATA: a map breaks
 * the rules above, or has other E or K than the first. */
MUST_CHECK int expert_map_read(struct expert_map *m, const char *path,
                               struct err *e);
void expert_map_release(struct expert_map *m); /* zeroed is allowed */
/* Can a model of this configuration route to K of its experts, the same
 * number in each of its groups?  E_CONFIG: no, and why. */
MUST_CHECK int expert_count_check(const struct model_config *c, int64_t kept,
                                  struct err *e);
/* Show c without the pruned experts: the others under their new numbers, and
 * routers as the mode says; the same for layers behind the last.  Then
 * config->moe.n_experts is K.  m must live as long as c.  E_CONFIG: m has not a
 * map of each layer with experts, and of no other, or as expert_count_check();
 * E_DATA: a layer has not all its experts, or no router. */
MUST_CHECK int checkpoint_prune(struct checkpoint *c,
                                const struct expert_map *m,
                                struct model_config *config,
                                enum expert_mode mode, struct err *e);

/* The map beside the weights of a checkpoint made in EXPERTS_REMAP:
 * *map[layers, experts], free() it.  E_NOINPUT: it is not there; E_DATA: it is
 * no such map. */
#define EXPERT_MAP_FILE "expert_map.safetensors"
MUST_CHECK int expert_map_stored(const struct checkpoint *c, int64_t layers,
                                 int64_t experts, int32_t **map, struct err *e);

#endif
