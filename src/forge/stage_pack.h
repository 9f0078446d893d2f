/* stage_pack.h - steps of pipeline.mk that make OUT of codes, or of the weights. */
#ifndef FORGE_STAGE_PACK_H
#define FORGE_STAGE_PACK_H

#include "forge/stage_tools.h"

/* Add the pipe that makes the checkpoint: all linears in the runtime's layout, and what
 * forge-shard takes from the model.  In a loop: beside it, while its layers are
 * written. */
void stage_add_pack(struct stage *s);
/* Behind such a loop: leave a note that the checkpoint is made. */
void stage_made(struct stage *s);

/* Steps (stage.c): layout gguf's checkpoint, which forge-gguf reads; OUT.  Nothing where a
 * loop has made it.  stage_result: errors of stage_checkpoint(). */
MUST_CHECK int stage_pack(struct stage *s, struct err *e);
MUST_CHECK int stage_result(struct stage *s, struct err *e);

#endif
