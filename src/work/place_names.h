/* place_names.h - the names of the files that steps make in a work directory. */
#ifndef FORGE_PLACE_NAMES_H
#define FORGE_PLACE_NAMES_H

#include "common/base.h"

#define PLACE_MARK "forge-work"
#define PLACE_TEXT "text" /* a calibration text that came by standard input */

/* Where a file is.  IN_PASSING: in the directory of IN_SOLVE, and read by nobody when all
 * layers have their codes. */
enum place_where {
    IN_TOP,
    IN_TOKENS,
    IN_CALIB,
    IN_SOLVE,
    IN_TUNED,
    IN_PASSING
};

/* The rest of name behind that of a file that is made there; NULL: it is none. */
const char *place_made(const char *name, enum place_where where);
/* The kind of a subdirectory of WORK by its name, an enum place_where; -1: not
 * forge's. */
int place_stage(const char *name);
/* The rest of the name of a checkpoint that a run makes in WORK; NULL: it is
 * none. */
const char *place_checkpoint(const char *name);
/* Whether a name in the directory of IN_CALIB is that of states, hidden-LAYER.fts. */
bool place_hidden(const char *name, int64_t *layer);
/* Whether name is ".status.tmp.HOST.PID.XXXXXX", a temporary file of
 * forge-run. */
bool place_status(const char *name, char host[256], long *pid);

#endif
