/* publishdir.h - writes a collection of tensors as a checkpoint directory. */
#ifndef FORGE_PUBLISHDIR_H
#define FORGE_PUBLISHDIR_H

#include "common/cli/progress.h"
#include "shard/shardplan.h"
#include "shard/verify.h"

struct publication {
    const char *model;            /* the source directory */
    uint64_t shard_size;          /* bytes of data per shard, at most */
    int64_t sample;               /* linears to compare after writing */
    const struct expert_map *map; /* experts to prune; NULL: none */
    enum expert_mode mode;
    struct progress *progress;
};

struct outdir;

/* Plan, write into o, and verify; the caller commits o.  All that can be
 * checked without the payloads is checked before the first one is copied
 * (complete.h).  *shards: number of weight files.  Errors of complete_check(),
 * quant_dict(), shard_plan(), verify_checkpoint(), reading and writing; E_TEMP
 * also: a signal. */
MUST_CHECK int publish_checkpoint(const struct publication *p,
                                  const struct outdir *o, struct collection *c,
                                  int *shards, struct verify_report *r,
                                  struct err *e);

#endif
