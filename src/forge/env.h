/* env.h - what the driver takes from its environment, and where its files are. */
#ifndef FORGE_ENV_H
#define FORGE_ENV_H

#include <limits.h>

#include "common/base.h"

/* "" when it is not set. */
const char *env_text(const char *name);
/* The directory of the tools, and that of pipeline.mk and forge-run: beside
 * this program, ../lib/4bit-forge.  Valid until the end. */
const char *env_bindir(void);
const char *env_libdir(void);
/* Find them, and put them in front of PATH.  E_NOINPUT: pipeline.mk is not
 * where it belongs. */
MUST_CHECK int env_setup(struct err *e);
#endif
