/* tmpdir.h - a directory made beside its place, as PATH.tmp.PID.XXXXXX, and
 * renamed when it is whole.
 *
 * Who makes it holds a lock on it, so that one whose maker was killed can be told
 * from one that is being made.  A leftover is ours, and is removed, if nobody
 * holds the lock and it is empty or has a file whose name only we give. */
#ifndef FORGE_TMPDIR_H
#define FORGE_TMPDIR_H

#include "common/base.h"

struct tmpdir {
    char *path; /* NULL: none is there */
    int lock;
};

/* Make one for `path`, which has no slash at its end.  E_CREATE. */
MUST_CHECK int tmpdir_make(struct tmpdir *t, const char *path, struct err *e);
/* Remove it with the files in it, if it has not been renamed, and free. */
void tmpdir_release(struct tmpdir *t);
/* It has another name now: free alone. */
void tmpdir_renamed(struct tmpdir *t);
/* Remove what killed ones left for `path`; marks: names of files, NULL ends them.
 * How many. */
int tmpdir_collect(const char *path, const char *const *marks);
/* ".tmp.PID.XXXXXX", as temporary names of files and directories end. */
bool tmpdir_suffix(const char *rest, long *pid);

#endif
