/* weights.h - what the weights of a model are, by their bytes.
 *
 * A file is hashed once; after that its size, inode and times stand for it, the
 * time of change among them, which nobody can set back (utime(2) sets it to
 * now).  A copy has another inode and is hashed again, to the same hash. */
#ifndef FORGE_WEIGHTS_FILES_H
#define FORGE_WEIGHTS_FILES_H

#include "forge/job.h"

/* All but the hash.  E_NOINPUT, E_DATA as modeldir_file(). */
MUST_CHECK int weights_stat(struct weights_file *f, const char *model,
                            const char *name, struct err *e);
/* The same file, as far as this host can tell... */
bool weights_unchanged(const struct weights_file *a,
                       const struct weights_file *b);
/* ... and another, where it may be a copy of the same age. */
bool weights_alike(const struct weights_file *a, const struct weights_file *b);
/* j->file: the files of the model's weights, by name; hashes from `known` where
 * these are of files that are unchanged (NULL: none), else of their bytes, on
 * all threads, which is said where it takes a while. */
MUST_CHECK int weights_hash(struct job *j, const struct job *known,
                            struct err *e);

#endif
