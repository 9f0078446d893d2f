/* emit.h - the frames that forge-pack writes. */
#ifndef FORGE_PACK_EMIT_H
#define FORGE_PACK_EMIT_H

#include "common/io/stream.h"
#include "pack/packer.h"

/* The n tensors of a module. */
MUST_CHECK int emit_tensors(struct stream_writer *out, const char *module,
                            const struct packed_tensor *t, int n,
                            struct err *e);
/* A weight that nobody quantized, by its name in the checkpoint. */
MUST_CHECK int emit_weight(struct stream_writer *out, const struct frame *f,
                           struct err *e);
/* What forge-shard must know: layout/runfacts.h.  Nothing packed, nothing to
 * say. */
MUST_CHECK int emit_run_note(struct stream_writer *out,
                             const struct pack_run *run, struct err *e);

#endif
