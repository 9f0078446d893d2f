/* along.h - another thread writes the files of all layers to a pipe, one behind the
 * other in the order of their numbers, each while it is being written.
 *
 * The pipe has the bytes of `cat` of the files.  Nobody waits for its reader: what
 * that has not read yet is in the files. */
#ifndef FORGE_SPLIT_ALONG_H
#define FORGE_SPLIT_ALONG_H

#include <limits.h>

#include "common/base.h"

struct along;

/* path = files, with the layer's number for its %. */
void layer_path(const char *files, int64_t layer, char path[PATH_MAX]);

/* path: the pipe; files: the layers' files, with a % for the number, of which some may
 * be there already.  E_CREATE, E_TEMP. */
MUST_CHECK int along_open(struct along **a, const char *path, const char *files,
                          struct err *e);
/* NULL is allowed as `a` from here on. */

/* A layer is being written now, and those before are in their files.  fd: from which
 * it can be read, closed by a; -1: it cannot. */
void along_begin(struct along *a, int64_t layer, int fd);
/* So many bytes from its beginning are in the file. */
void along_there(struct along *a, uint64_t bytes);
/* All of it is. */
void along_end(struct along *a);
/* All layers are in their files: write the rest of them, and free a.  A reader that has
 * gone is no error, it says why itself.  E_IO, E_NOINPUT. */
MUST_CHECK int along_close(struct along *a, struct err *e);

#endif
