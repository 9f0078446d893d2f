/* weights.h - identifies a model's weights by hashes of its files.
 *
 * A file is hashed once.  Later its size, inode and times identify it, among
 * them ctime, which no program can set back (utime(2) sets it to now).  A copy
 * has another inode and is hashed again, with the same result. */
#ifndef FORGE_WEIGHTS_FILES_H
#define FORGE_WEIGHTS_FILES_H

#include "forge/job.h"

/* Set j->file: the files of the model's weights, sorted by name.  Hashes of
 * unchanged files are taken from `known` (NULL: none), the others are computed
 * by all threads, with a remark if that takes seconds.  *same: all were known.
 * Errors of reading; E_TEMP. */
MUST_CHECK int weights_hash(struct job *j, const struct job *known, bool *same,
                            struct err *e);
/* E_DATA: a file has changed since it was hashed.  On another host than
 * j->host, where inodes and times of change may differ, only size and
 * modification time are compared. */
MUST_CHECK int weights_same(const struct job *j, struct err *e);

#endif
