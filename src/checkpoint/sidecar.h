/* sidecar.h - a model's files besides its weights: tokenizer, generation
 * settings, chat template, processor settings, licence. */
#ifndef FORGE_SIDECAR_H
#define FORGE_SIDECAR_H

#include "common/io/modeldir.h"

enum { SIDECAR_MAX = 256 << 20 }; /* bytes of a file */

/* Names of such files in a directory, sorted. */
struct sidecars {
    char **name;
    size_t n;
};

/* List them.  code: include *.py, for a config.json with auto_map.  map:
 * include EXPERT_MAP_FILE, of a model pruned with --mode remap.  E_IO,
 * E_TEMP. */
MUST_CHECK int sidecars_list(struct sidecars *s, const struct modeldir *d,
                             bool code, bool map, struct err *e);
void sidecars_release(struct sidecars *s);

/* Whether each of them, config.json and README.md can be read (modeldir.h), to
 * be called before any work; warns of what will not be copied.  E_DATA: one
 * leads out of the directory, is not a regular file, or is longer than
 * SIDECAR_MAX.  Other errors are those of model_config_read() and
 * expert_map_stored(). */
MUST_CHECK int sidecars_check(const char *model, struct err *e);

#endif
