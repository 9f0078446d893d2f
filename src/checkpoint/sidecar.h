/* sidecar.h - the small files that belong to a model besides its weights. */
#ifndef FORGE_SIDECAR_H
#define FORGE_SIDECAR_H

#include "common/io/modeldir.h"

enum { SIDECAR_MAX = 256 << 20 }; /* bytes of one */

/* Those of a model's directory by name, in order: tokenizer, generation
 * settings, chat template, processor settings, licence. */
struct sidecars {
    char **name;
    size_t n;
};

/* code: config.json has an auto_map, so that the model needs its own Python
 * files.  map: the map of experts of a model that was pruned with --mode remap
 * is one, too. */
MUST_CHECK int sidecars_list(struct sidecars *s, const struct modeldir *d,
                             bool code, bool map, struct err *e);
void sidecars_release(struct sidecars *s);

/* Before any work: can each be read, its configs and its card (README.md)
 * included, by the rule of modeldir.h?  E_DATA: one leads out of the directory,
 * is no regular file, or is longer than SIDECAR_MAX. */
MUST_CHECK int sidecars_check(const char *model, struct err *e);

#endif
