/* outdir.h - a directory that appears whole or not at all.
 *
 * Everything is written into OUT.tmp.PID.XXXXXX beside OUT, each file synced;
 * then the directory is renamed and its parent synced.  A run that is killed
 * leaves the temporary directory, never OUT, and the next one removes it; SIGINT, SIGTERM and SIGHUP are
 * noticed between tensors, so that it can be removed. */
#ifndef FORGE_OUTDIR_H
#define FORGE_OUTDIR_H

#include "common/io/tmpdir.h"

struct outdir {
    char *path;        /* where it will be */
    struct tmpdir tmp; /* where it is */
    char *parent;
    struct digests *digests; /* of the files in it, as they are written */
};

/* Remove what runs that were killed left of OUT.  How many. */
int outdir_collect(const char *path);
/* E_CREATE: OUT exists and is not an empty directory, or the parent is not
 * there or not writable. */
MUST_CHECK int outdir_begin(struct outdir *o, const char *path, struct err *e);
/* malloced "TMP/name"; NULL with *e. */
MUST_CHECK char *outdir_file(const struct outdir *o, const char *name,
                             struct err *e);
/* Write a small file into it, synced, and note its digest. */
MUST_CHECK int outdir_text(const struct outdir *o, const char *name,
                           const char *text, size_t len, struct err *e);
MUST_CHECK int outdir_remove(const struct outdir *o, const char *name,
                             struct err *e);
MUST_CHECK int outdir_commit(struct outdir *o, struct err *e);
/* Remove the temporary directory, if it is still there, and free. */
void outdir_release(struct outdir *o);

/* Number of the signal that asks to stop; 0: none so far. */
int outdir_signal(void);
/* E_TEMP when there was one. */
MUST_CHECK int outdir_go_on(struct err *e);

#endif
