/* runfile.h - WORK/run, which forge(1) writes: lines NAME=VALUE, the values
 * quoted as the shell's printf %q does. */
#ifndef FORGE_RUNFILE_H
#define FORGE_RUNFILE_H

#include "common/base.h"

struct runfile {
    char *text; /* owns the values */
    const char *name[64], *value[64];
    size_t count;
};

/* E_NOINPUT: no such file; E_DATA: not such a file, with the line. */
MUST_CHECK int runfile_read(struct runfile *r, const char *path, struct err *e);
/* "" when absent. */
const char *runfile_get(const struct runfile *r, const char *name);
/* The value as a number, `none` when it is absent or no number from 0 on. */
int64_t runfile_number(const struct runfile *r, const char *name, int64_t none);
void runfile_release(struct runfile *r);

#endif
