/* shardplan.h - which tensor goes into which shard, and where in it. */
#ifndef FORGE_SHARDPLAN_H
#define FORGE_SHARDPLAN_H

#include "shard/collect.h"

enum { SHARD_NAME_MAX = 64 };

struct shard {
    char name[SHARD_NAME_MAX]; /* "model-00001-of-00003.safetensors" */
    struct out_tensor *first;  /* n tensors, in the order of their offsets */
    size_t n;
    uint64_t bytes; /* of data */
};

struct shard_plan {
    struct shard *shard;
    int n;
};

/* Fill shards in the order of the names up to `limit` bytes of data (a larger
 * tensor gets a shard of its own), then order each shard as the official
 * writer does: larger types first, so that every tensor is aligned, then by
 * name.  Reorders c->tensor.  The plan depends on names, types and sizes
 * alone, not on how the tensors came.  E_CONFIG: a dtype that safetensors
 * does not have, or more than 99,999 shards. */
MUST_CHECK int shard_plan(struct shard_plan *p, struct collection *c,
                          uint64_t limit, struct err *e);
void shard_plan_release(struct shard_plan *p);

/* Header of a shard: length, JSON, spaces up to a multiple of 8.  metadata: the
 * "__metadata__", JSON.  *text is malloced.  E_CONFIG: beyond the 100,000,000 bytes that readers take. */
MUST_CHECK int shard_header(const struct shard *s, const char *metadata,
                            char **text, size_t *len, struct err *e);
/* model.safetensors.index.json for all shards; free() *text. */
MUST_CHECK int shard_index(const struct shard_plan *p, char **text, size_t *len,
                           struct err *e);
/* forge_checksums.json (digests.h) for all of them; free() *text. */
MUST_CHECK int shard_checksums(const struct shard_plan *p, char **text,
                               size_t *len, struct err *e);

#endif
