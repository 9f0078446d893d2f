/* env.h - forge's environment variables, and the directories of its programs
 * and files. */
#ifndef FORGE_ENV_H
#define FORGE_ENV_H

#include <limits.h>

#include "common/base.h"

/* The value of an environment variable; "" when it is not set. */
const char *env_text(const char *name);
/* *to = the value of a variable that is a number, at most `most`, and set.  E_USAGE:
 * it is another text. */
MUST_CHECK int env_number(const char *name, int64_t most, int64_t *to,
                          struct err *e);
/* Whether steps are started by forge-run: on other machines, or again after 75. */
bool env_away(void);
/* The directory of the tools (this program's), and that of pipeline.mk and
 * forge-run (../lib/4bit-forge from there).  Static memory; call env_setup()
 * first. */
const char *env_bindir(void);
const char *env_libdir(void);
/* Find both directories, put them in front of PATH (where it is not set: of the
 * system's), and take what GNU make reads out of the environment.  E_NOINPUT: there is
 * no pipeline.mk. */
MUST_CHECK int env_setup(struct err *e);
#endif
