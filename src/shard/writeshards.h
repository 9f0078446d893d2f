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

struct shard_writer;

/* What the arguments point to must outlive the writer; the plan may get further shards
 * between calls.  Memory: twice 8 MiB, and a writer's queue (write_behind.h), for each
 * shard that is being written.  E_TEMP. */
MUST_CHECK int shard_writer_open(struct shard_writer **w,
                                 struct shard_plan *plan,
                                 const struct collection *c,
                                 const struct outdir *o,
                                 struct progress *progress, struct err *e);
/* Begin to write the plan's next shard beside other work, unless one is being written
 * or all are.  metadata: as shard_header(), until the next call.  The first error in
 * time: E_DATA: a payload's checksum; E_CONFIG: as shard_header(); E_CREATE, E_IO,
 * E_TEMP; E_TEMP also: a signal. */
MUST_CHECK int shard_writer_go_on(struct shard_writer *w, const char *metadata,
                                  struct err *e);
/* Write the rest of the plan, each file fsynced, set xxh3 of the tensors, settle the plan,
 * give the files their names, and add their SHA-256 to o->digests.  Errors as above; the first one ends
 * all. */
MUST_CHECK int shard_writer_finish(struct shard_writer *w, const char *metadata,
                                   struct err *e);
void shard_writer_close(struct shard_writer *w); /* NULL is allowed */

#endif
