/* writeshards.h - copies the tensors of a plan into its shards, several shards at
 * once.
 *
 * SHA-256 is serial within a file (FIPS 180-4), so a shard is copied in pieces by
 * three threads: one reads the next piece and computes the tensors' XXH3-64, one
 * adds the piece before to SHA-256, and one writes it. */
#ifndef FORGE_WRITESHARDS_H
#define FORGE_WRITESHARDS_H

#include "common/cli/progress.h"
#include "shard/outdir.h"
#include "shard/shardplan.h"

/* Write all shards of the plan, each fsynced, add their SHA-256 to o->digests, and
 * set xxh3 of their tensors.  metadata: as shard_header().  Memory: twice 8 MiB, and
 * a writer's queue (write_behind.h), for each thread of the pool.  The first error in
 * time ends all shards: E_DATA: a payload's checksum; E_CONFIG: as shard_header();
 * E_CREATE, E_IO, E_TEMP; E_TEMP also: a signal. */
MUST_CHECK int write_shards(const struct shard_plan *plan,
                            const struct collection *c, const struct outdir *o,
                            const char *metadata, struct progress *progress,
                            struct err *e);

#endif
