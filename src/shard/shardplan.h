/* shardplan.h - assigns tensors to shards (safetensors files) and offsets, and
 * writes the texts that describe the shards. */
#ifndef FORGE_SHARDPLAN_H
#define FORGE_SHARDPLAN_H

#include "common/io/sha256.h"
#include "shard/collect.h"

enum { SHARD_NAME_MAX = 64 };

struct shard {
    char name[SHARD_NAME_MAX]; /* "model-00001-of-00003.safetensors"; while
                                * it is written "model-00001.safetensors" */
    struct out_tensor *first;  /* [n], in the order of their offsets */
    size_t n;
    uint64_t bytes; /* of data, without the header */
    bool behind;    /* numbered behind those that are planned later */
    char sha256[SHA256_HEX + 1]; /* of the file, when it is written */
};

/* Zero-initialise; shard_plan_release() when done. */
struct shard_plan {
    struct shard **shard; /* [n], which stay where they are */
    int n;
};

/* Move the first `ready` tensors of c, which are in their order (order.h) and have
 * their stored names, into further shards, up to `limit` bytes of data each (a larger
 * tensor gets a shard of its own).  last: no tensor comes after them; otherwise what
 * does not fill a shard stays in c.  Inside a shard the order is that of the
 * safetensors library's writer: by descending alignment of the type, so that every
 * tensor is aligned, then by name.  E_CONFIG: a type that safetensors does not have,
 * or more than 99,999 shards; E_TEMP. */
MUST_CHECK int shard_plan_take(struct shard_plan *p, struct collection *c,
                               size_t ready, bool last, uint64_t limit,
                               struct err *e);
/* There are no further shards: put those that are `behind` where they are numbered. */
void shard_plan_settle(struct shard_plan *p);
/* After that: the name of shard i, as loaders know it. */
void shard_plan_name(const struct shard_plan *p, int i,
                     char name[SHARD_NAME_MAX]);
/* Number of tensors. */
size_t shard_plan_tensors(const struct shard_plan *p);
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
