/* tmpdir.h - a directory that is built under a temporary name beside its final
 * one, PATH.tmp.PID.XXXXXX, and renamed when it is complete.
 *
 * Its maker holds a lock (flock) on it.  A leftover of a killed maker is
 * therefore one that nobody locks; it is removed if it contains a file of a name
 * that only this program gives, or is empty and has the mode 1700 of a new one. */
#ifndef FORGE_TMPDIR_H
#define FORGE_TMPDIR_H

#include "common/base.h"

/* A temporary directory of ours. */
struct tmpdir {
    char *path; /* temporary path; NULL: none */
    int lock;   /* descriptor of the directory, which holds the lock */
};

/* Make one for `path`, which must not end in '/'.  E_CREATE; E_TEMP. */
MUST_CHECK int tmpdir_make(struct tmpdir *t, const char *path, struct err *e);
/* Remove the directory with its files and those of its directories, which have
 * none, unless it was renamed; free t. */
void tmpdir_release(struct tmpdir *t);
/* The caller has renamed the directory: free t only. */
void tmpdir_renamed(struct tmpdir *t);
/* Remove leftovers of killed makers for `path`; returns how many.  marks: file
 * names that show that a directory is ours; NULL ends the list. */
int tmpdir_remove_stale(const char *path, const char *const *marks);
/* Whether `rest` is ".tmp.PID.XXXXXX", the end of all temporary names of files
 * and directories; *pid is then PID. */
bool tmpdir_suffix(const char *rest, long *pid);

#endif
