/* sidecar.h - a model's files besides its weights: tokenizer, generation
 * settings, chat template, processor settings, licence; of a model for
 * embeddings, the settings of sentence-transformers and the files of its
 * modules.
 *
 * modules.json is a list of modules, [{"path": DIR, ...}, ...], each of which
 * has its settings and weights in the files of the directory DIR; "": in the
 * model's own. */
#ifndef FORGE_SIDECAR_H
#define FORGE_SIDECAR_H

#include "common/io/modeldir.h"

enum { SIDECAR_MAX = 256 << 20 }; /* bytes of a file */

/* Names of such files in a directory, sorted, and then those of modules,
 * DIR/FILE. */
struct sidecars {
    char **name;
    size_t n;
};

/* List them.  code: include *.py, for a config.json with auto_map.  map:
 * include EXPERT_MAP_FILE, of a model pruned with --mode remap.  A module may
 * have no directory; its files beyond SIDECAR_MAX and its directories are left
 * out.  E_DATA: modules.json is no such list, or names what is not one
 * directory's name without a dot; a file of a module as in sidecars_check().
 * E_IO, E_TEMP. */
MUST_CHECK int sidecars_list(struct sidecars *s, const struct modeldir *d,
                             bool code, bool map, struct err *e);
void sidecars_release(struct sidecars *s);

/* Whether each of them, config.json and README.md can be read (modeldir.h), to
 * be called before any work; warns of what modules have that will not be
 * copied.  E_DATA: one leads out of the directory, is not a regular file, or is
 * longer than SIDECAR_MAX.  Other errors are those of sidecars_list(),
 * model_config_read() and expert_map_stored(). */
MUST_CHECK int sidecars_check(const char *model, struct err *e);

#endif
