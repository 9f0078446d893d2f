/* modeldir.h - files of a model's directory, which nothing in it can leave.
 *
 * The directory itself may be reached by a symbolic link.  Inside it a name
 * is one path component, and a symbolic link is followed only if it stays in
 * the directory or is one of the Hugging Face cache, where
 * snapshots/REV/FILE points to ../../blobs/HASH. */
#ifndef FORGE_MODELDIR_H
#define FORGE_MODELDIR_H

#include "common/io/file.h"

struct modeldir {
    int fd;
    const char *path; /* the caller's, for messages */
};

/* E_NOINPUT: no such directory. */
MUST_CHECK int modeldir_open(struct modeldir *d, const char *path,
                             struct err *e);
void modeldir_close(struct modeldir *d);

/* May an index name this file?  One component, no control characters, not
 * beginning with '-' or '.', ending in suffix. */
bool modeldir_name_ok(const char *name, const char *suffix);
/* Is there something of this name, whatever it is? */
bool modeldir_has(const struct modeldir *d, const char *name);
/* E_NOINPUT: none there; E_DATA: not a regular file, or a link that leaves
 * the directory. */
MUST_CHECK int modeldir_file(const struct modeldir *d, const char *name,
                             struct file **f, struct err *e);
/* Open, read, close: one file of a directory. */
MUST_CHECK int modeldir_read(const char *dir, const char *name, size_t max,
                             char **text, size_t *len, struct err *e);
/* Read a file whole; *text is NUL-terminated, free() it.  E_DATA beyond max
 * bytes. */
MUST_CHECK int modeldir_slurp(const struct modeldir *d, const char *name,
                              size_t max, char **text, size_t *len,
                              struct err *e);

#endif
