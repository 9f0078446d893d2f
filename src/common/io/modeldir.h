/* modeldir.h - files of a model's directory; no name and no link leads out of
 * it.
 *
 * The directory itself may be reached through a symbolic link.  Inside it a
 * name is FILE, or DIR/FILE with a directory DIR that is no symbolic link.  FILE
 * may be a symbolic link, which is followed only if it stays in the directory
 * that it lies in or has the form of the Hugging Face cache,
 * snapshots/REV/FILE -> ../../blobs/HASH, one ../ more in DIR. */
#ifndef FORGE_MODELDIR_H
#define FORGE_MODELDIR_H

#include <dirent.h>

#include "common/io/file.h"

/* An open directory. */
struct modeldir {
    int fd;           /* of the directory */
    const char *path; /* for messages; the caller's */
    bool within;      /* it is the DIR of a DIR/FILE */
};

/* E_NOINPUT: no such directory. */
MUST_CHECK int modeldir_open(struct modeldir *d, const char *path,
                             struct err *e);
void modeldir_close(struct modeldir *d);

/* Whether a shard index may name this file: one component, no control
 * characters, first character neither '-' nor '.', ends in suffix. */
bool modeldir_name_ok(const char *name, const char *suffix);
/* Whether a name is such a one, or two of them with a slash between. */
bool modeldir_path_ok(const char *name);
/* Whether a directory entry of this name exists, of any type. */
bool modeldir_has(const struct modeldir *d, const char *name);
/* (*list)[*n]: what the directory `name` in it has, sorted; free() each, and
 * *list.  E_NOINPUT: not there; E_DATA: no directory, or a symbolic link. */
MUST_CHECK int modeldir_list(const struct modeldir *d, const char *name,
                             struct dirent ***list, int *n, struct err *e);
/* Open a file of the directory; file_close() it.  E_NOINPUT: not there;
 * E_DATA: not a regular file, or a link that leads out of the directory, or as
 * modeldir_list() for the DIR of a DIR/FILE. */
MUST_CHECK int modeldir_file(const struct modeldir *d, const char *name,
                             struct file **f, struct err *e);
/* modeldir_open(), modeldir_slurp() and modeldir_close() for one file. */
MUST_CHECK int modeldir_read(const char *dir, const char *name, size_t max,
                             char **text, size_t *len, struct err *e);
/* Read a whole file; *text has a NUL after its *len bytes, free() it.  E_DATA:
 * more than max bytes; else as modeldir_file(). */
MUST_CHECK int modeldir_slurp(const struct modeldir *d, const char *name,
                              size_t max, char **text, size_t *len,
                              struct err *e);

/* What a reader calls a path: its last part; of one in the Hugging Face cache,
 * .../models--ORG--NAME/snapshots/REV, "ORG/NAME".  Cut where it does not fit. */
void path_title(char *to, size_t cap, const char *path);

#endif
