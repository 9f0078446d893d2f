/* publishdir.h - a collection of tensors becomes a checkpoint directory. */
#ifndef FORGE_PUBLISHDIR_H
#define FORGE_PUBLISHDIR_H

#include "common/cli/progress.h"
#include "shard/shardplan.h"
#include "shard/verify.h"

struct publication {
    const char *model; /* the source directory */
    uint64_t shard_size;
    int64_t sample;               /* linears to compare after writing */
    const struct expert_map *map; /* what the model was pruned by; or NULL */
    enum expert_mode mode;
    struct progress *progress;
};

struct outdir;

/* Plan, write, verify; the caller renames the directory.  Everything that
 * can be known is checked before the first payload is moved.  *shards: how
 * many files hold weights. */
MUST_CHECK int publish_checkpoint(const struct publication *p,
                                  const struct outdir *o, struct collection *c,
                                  int *shards, struct verify_report *r,
                                  struct err *e);

#endif
