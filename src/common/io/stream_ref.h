/* stream_ref.h - opens the file that a REF frame names. */
#ifndef FORGE_STREAM_REF_H
#define FORGE_STREAM_REF_H

#include "common/base.h"

struct file;

/* Open `path` below the directory `root`: a relative path without "..", and no
 * symbolic link that leads out of root.  file_close() it.  E_DATA: it leaves
 * root; E_NOINPUT: not there. */
MUST_CHECK int ref_open(struct file **f, const char *root, const char *path,
                        struct err *e);

#endif
