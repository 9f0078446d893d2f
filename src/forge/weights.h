/* weights.h - what the weights of a model are, by their bytes.
 *
 * A file is hashed once; after that its size, inode and times stand for it, the
 * time of change among them, which nobody can set back (utime(2) sets it to
 * now).  A copy has another inode and is hashed again, to the same hash. */
#ifndef FORGE_WEIGHTS_FILES_H
#define FORGE_WEIGHTS_FILES_H

#include "forge/job.h"

/* j->file: the files of the model's weights, by name; hashes from `known` where
 * these are of files that are unchanged (NULL: none), else of their bytes, on
 * all threads, which is said where it takes a while.  *same: all of them were known. */
MUST_CHECK int weights_hash(struct job *j, const struct job *known, bool *same,
                            struct err *e);
/* E_DATA: one of the files is not what it was when it was hashed; on another
 * host, whose numbers for the same file may be others, by size and age. */
MUST_CHECK int weights_same(const struct job *j, struct err *e);

#endif
