/* spool.h - copies a pipe to a file, so that it can be read twice. */
#ifndef FORGE_SPOOL_H
#define FORGE_SPOOL_H

#include "common/base.h"

/* Copy standard input to a new file at path.  E_USAGE: standard input is a
 * terminal; E_CREATE; E_IO; E_TEMP: a signal was caught (outdir.h). */
MUST_CHECK int spool_stdin(const char *path, struct err *e);

#endif
