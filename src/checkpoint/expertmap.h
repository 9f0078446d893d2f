/* expertmap.h - which experts of a mixture are kept, and a checkpoint without
 * the others.
 *
 * forge-prune writes the map: a stream with a frame of role `map` for each
 * layer that has experts, "model.layers.L.mlp", I32 [E]: the new index of each
 * expert, or -1 if it is pruned.  Kept experts stay in order. */
#ifndef FORGE_EXPERTMAP_H
#define FORGE_EXPERTMAP_H

#include "arch/config.h"
#include "checkpoint/checkpoint.h"

/* What happens to the router of a pruned model: --mode of the tools. */
enum expert_mode {
    EXPERTS_PRUNE, /* only the rows of kept experts stay: a smaller model */
    EXPERTS_REMAP  /* it keeps all rows: the runtime replaces choices of
                    * pruned experts (model/remap.h) */
};
#define EXPERT_MODES "prune|remap"

/* The map of one layer. */
struct expert_layer {
    int64_t layer;
    int32_t *id;  /* [experts] new index, or -1 */
    int32_t *old; /* [kept] old index of each kept expert */
};

/* The maps of all layers, in order. */
struct expert_map {
    int64_t experts, kept;      /* E and K, equal in all layers */
    struct expert_layer *layer; /* [n], by layer number */
    size_t n;
};

/* Read a stream of map frames; other frames are ignored.  E_DATA: a map breaks
 * the rules above, or its E or K differs from the first one's; else as
 * stream_open() and stream_next(). */
MUST_CHECK int expert_map_read(struct expert_map *m, const char *path,
                               struct err *e);
void expert_map_release(struct expert_map *m); /* zeroed is allowed */
/* Whether a model of this configuration can have K experts: enough for top-k,
 * the same number in each group, and a router of as many rows as there are
 * experts now.  E_CONFIG says why not. */
MUST_CHECK int expert_count_check(const struct model_config *c, int64_t kept,
                                  struct err *e);
/* Remove pruned experts from the view of c: the others get their new indices,
 * and routers only the kept rows (EXPERTS_PRUNE).  Layers behind the model's
 * last one (multi-token prediction) get the last layer's map.  Sets
 * config->moe.n_experts to K.  m must live as long as c.  E_CONFIG: m does not
 * have a map for exactly the layers with experts, or expert_count_check()
 * fails; E_DATA: a layer lacks experts or its router. */
MUST_CHECK int checkpoint_prune(struct checkpoint *c,
                                const struct expert_map *m,
                                struct model_config *config,
                                enum expert_mode mode, struct err *e);

/* The map that an EXPERTS_REMAP checkpoint has beside its weights, tensor
 * "expert_map" I32 [n_layers, n_router]: *map, free() it; NULL: the model's
 * router has no rows of pruned experts.  E_NOINPUT: the file is missing;
 * E_DATA: it has no such tensor, or expert_row_check() of a layer with experts
 * fails. */
#define EXPERT_MAP_FILE "expert_map.safetensors"
MUST_CHECK int expert_map_stored(const char *dir, const struct model_config *c,
                                 int32_t **map, struct err *e);
/* A layer's row, map[experts].  E_DATA: an entry is neither -1 nor
 * 0..kept-1, or the others are not a bijection to 0..kept-1; E_TEMP. */
MUST_CHECK int expert_row_check(const int32_t *map, int64_t experts,
                                int64_t kept, struct err *e);

#endif
