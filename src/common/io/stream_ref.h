/* stream_ref.h - payloads that lie in a file beside the stream. */
#ifndef FORGE_STREAM_REF_H
#define FORGE_STREAM_REF_H

#include "common/base.h"

struct file;

/* Open `path` for reading below the directory `root`: no absolute path, no
 * "..", no symbolic link that leads out.  E_DATA when it tries to leave,
 * E_NOINPUT when it is not there. */
MUST_CHECK int ref_open(struct file **f, const char *root, const char *path,
                        struct err *e);

#endif
