/* emit.h - the frames that forge-pack writes. */
#ifndef FORGE_PACK_EMIT_H
#define FORGE_PACK_EMIT_H

#include "common/io/stream.h"
#include "pack/packer.h"

/* Write the n tensors of a module, named MODULE.part.  E_DATA: the name is too
 * long; errors of writing. */
MUST_CHECK int emit_tensors(struct stream_writer *out, const char *module,
                            const struct packed_tensor *t, int n,
                            struct err *e);
/* Write a weight frame that was not quantized as the checkpoint's tensor
 * NAME.weight.  Errors as emit_tensors(). */
MUST_CHECK int emit_weight(struct stream_writer *out, const struct frame *f,
                           struct err *e);
/* Write the note of a module that was rounded to nearest, as forge-solve does. */
MUST_CHECK int emit_rounded(struct stream_writer *out, const char *module,
                            struct err *e);
/* Write the note for forge-shard (layout/runfacts.h), once behind the first module, and
 * once behind the last.  It is written as soon as no later module can change it, and
 * once more if one did: grids of several kinds are known at the end only, and whether
 * GPTQ's inputs have an order.  E_TEMP; errors of writing. */
MUST_CHECK int emit_run_note(struct stream_writer *out, struct pack_run *run,
                             bool last, struct err *e);

#endif
