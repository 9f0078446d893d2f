/* spool.h - a pipe kept in a file, so that it can be read twice. */
#ifndef FORGE_SPOOL_H
#define FORGE_SPOOL_H

#include "common/base.h"

/* Copy standard input to a new file at path, as it comes.  E_USAGE: standard
 * input is a terminal; E_TEMP: a signal asked to stop. */
MUST_CHECK int spool_stdin(const char *path, struct err *e);

#endif
