/* weights.h - identifies a model's weights by hashes of its files (work/inputs.h). */
#ifndef FORGE_WEIGHTS_FILES_H
#define FORGE_WEIGHTS_FILES_H

#include "forge/job.h"

/* Set j->in: the files of the model's weights, sorted by name, and the others.  Hashes of
 * unchanged files are taken from `known` (NULL: none), the others are computed
 * by all threads, with a remark if that takes seconds.  *same: all were known.
 * Errors of reading; E_TEMP. */
MUST_CHECK int weights_hash(struct job *j, const struct job *known, bool *same,
                            struct err *e);

#endif
