/* sidecar.h - the small files that belong to a model besides its weights. */
#ifndef FORGE_SIDECAR_H
#define FORGE_SIDECAR_H

#include "shard/outdir.h"

/* Copy them (tokenizer, generation settings, chat template, processor settings,
 * licence) from the model's directory, links followed only as
 * checkpoint/modeldir.h allows.  code: config.json has an auto_map, so that
 * the model needs its own Python files.  map: the model's map of experts goes
 * along, which it has if it was pruned with --mode remap. */
MUST_CHECK int sidecar_copy(const struct outdir *o, const char *model,
                            bool code, bool map, struct err *e);

/* Whether they could be copied, which ones config.json asks for included: each
 * is a regular file of a size that is copied, in the directory.  E_DATA. */
MUST_CHECK int sidecar_check(const char *model, struct err *e);
/* Whether the model needs its own Python files, by the text of config.json. */
bool sidecar_wants_code(const char *config);

#endif
