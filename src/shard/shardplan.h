/* shardplan.h - assigns tensors to shards (safetensors files) and offsets, and
 * writes the texts that describe the shards. */
#ifndef FORGE_SHARDPLAN_H
#define FORGE_SHARDPLAN_H

#include "shard/collect.h"

enum { SHARD_NAME_MAX = 64 };

struct shard {
    char name[SHARD_NAME_MAX]; /* "model-00001-of-00003.safetensors" */
    struct out_tensor *first;  /* [n], in the order of their offsets */
    size_t n;
    uint64_t bytes; /* of data, without the header */
};

struct shard_plan {
    struct shard *shard;
    int n;
};

/* Fill shards in the order of names, up to `limit` bytes of data each (a larger
 * tensor gets a shard of its own).  Inside a shard the order is that of the
 * safetensors library's writer: by descending alignment of the type, so that
 * every tensor is aligned, then by name.  Reorders c->tensor, whose memory the
 * plan points into.  The plan depends only on names, types and sizes, not on
 * the order of the input.  E_CONFIG: a type that safetensors does not have, or
 * more than 99,999 shards; E_TEMP. */
MUST_CHECK int shard_plan(struct shard_plan *p, struct collection *c,
                          uint64_t limit, struct err *e);
void shard_plan_release(struct shard_plan *p);

/* *text = the header of a shard: 8 bytes of length, JSON, spaces up to a
 * multiple of 8; free() it.  metadata: JSON of "__metadata__".  E_CONFIG:
 * longer than the 100,000,000 bytes that readers accept; E_TEMP. */
MUST_CHECK int shard_header(const struct shard *s, const char *metadata,
                            char **text, size_t *len, struct err *e);
/* *text = model.safetensors.index.json; free() it. */
MUST_CHECK int shard_index(const struct shard_plan *p, char **text, size_t *len,
                           struct err *e);
/* *text = forge_checksums.json (digests.h), after all tensors are written;
 * free() it. */
MUST_CHECK int shard_checksums(const struct shard_plan *p, char **text,
                               size_t *len, struct err *e);

#endif
