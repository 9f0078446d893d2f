/* arguments.h - what commands of forge are given: paths, texts, models; checked before
 * any work. */
#ifndef FORGE_ARGUMENTS_H
#define FORGE_ARGUMENTS_H

#include <limits.h>

#include "common/base.h"

/* A file to calibrate on; NULL: none was given.  E_USAGE, E_NOINPUT, E_DATA. */
MUST_CHECK int check_text(const char *path, struct err *e);
/* A directory to make: E_CREATE when it is there, cannot be made, or would lie
 * inside the model. */
MUST_CHECK int check_out(const char *given, const char *out, const char *model,
                         struct err *e);
/* A model that is 4-bit already.  E_CONFIG. */
MUST_CHECK int check_plain(const char *model, bool packed, struct err *e);
/* Is a the directory b, or in it?  Absolute paths. */
bool path_inside(const char *a, const char *b);
/* As realpath -m: what is there is resolved, the rest taken as it is. */
MUST_CHECK int path_absolute(const char *path, char to[PATH_MAX],
                             struct err *e);

#endif
