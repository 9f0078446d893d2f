/* outdir.h - an output directory that appears complete or not at all.
 *
 * Files are written into OUT.tmp.PID.XXXXXX beside OUT, each one fsynced; then
 * the directory is renamed to OUT and its parent fsynced.  A run that is killed
 * leaves the temporary directory, never OUT, and the next run removes it.
 * SIGINT, SIGTERM and SIGHUP are polled between tensors (outdir_go_on()), so
 * that the run itself can remove it. */
#ifndef FORGE_OUTDIR_H
#define FORGE_OUTDIR_H

#include "common/io/tmpdir.h"

struct outdir {
    char *path;        /* OUT */
    struct tmpdir tmp; /* the temporary directory */
    char *parent;
    struct digests *digests; /* of the files written so far */
};

/* Remove temporary directories of OUT that killed runs have left.  Returns
 * their number. */
int outdir_collect(const char *path);
/* Create the temporary directory, and catch the signals; outdir_release() *o
 * also after an error.  E_USAGE: path is empty; E_CREATE: OUT exists and is not
 * an empty directory, or its parent does not exist or cannot be written to;
 * E_TEMP. */
MUST_CHECK int outdir_begin(struct outdir *o, const char *path, struct err *e);
/* The path of file `name` in the temporary directory; free() it.  NULL with
 * *e. */
MUST_CHECK char *outdir_file(const struct outdir *o, const char *name,
                             struct err *e);
/* Write a small file, FILE or DIR/FILE, fsynced, and add its digest.  DIR is made
 * if it is not there.  E_CREATE, E_IO, E_TEMP. */
MUST_CHECK int outdir_text(const struct outdir *o, const char *name,
                           const char *text, size_t len, struct err *e);
/* Give a file another name. */
MUST_CHECK int outdir_rename(const struct outdir *o, const char *from,
                             const char *to, struct err *e);
/* Rename the directory to OUT.  E_CREATE, E_IO. */
MUST_CHECK int outdir_commit(struct outdir *o, struct err *e);
/* Remove the temporary directory, unless it was committed, and free. */
void outdir_release(struct outdir *o);

/* Number of the signal caught; 0: none so far. */
int outdir_signal(void);
/* E_TEMP: a signal was caught. */
MUST_CHECK int outdir_go_on(struct err *e);

#endif
