/* place.h - creates, locks and cleans the work directory of forge quantize, and
 * never removes a file that forge did not make.
 *
 * A work directory has a mark, the file PLACE_MARK.  A directory without it is
 * refused unless it is empty.  In a marked directory a file is forge's if its
 * whole name is one that a step of the pipeline gives, in the subdirectory
 * where the step gives it.  Other names are never touched, other directories
 * never entered, links never followed. */
#ifndef FORGE_PLACE_H
#define FORGE_PLACE_H

#include <limits.h>

#include "common/base.h"

struct place {
    const char *dir; /* the caller's */
    int lock;        /* descriptor of the lock, inherited by steps; -1: none */
    bool temporary;  /* made by forge, to be removed when the run is done */
};

/* Shorten an absolute path to itself or its nearest ancestor that exists. */
void place_existing(char path[PATH_MAX]);
/* Whether dir can be used, without creating it.  E_CREATE: it is no directory,
 * or not empty and without a mark, or cannot be created or written to. */
MUST_CHECK int place_check(const char *dir, struct err *e);
/* Create dir with its parents, or take an existing one, and lock it.  keep: the
 * user named it; otherwise one that is created here is temporary.  E_CREATE, also where
 * something else than a file has a name that a step gives; E_TEMP: another forge has held
 * the lock for two seconds. */
MUST_CHECK int place_open(struct place *p, const char *dir, bool keep,
                          struct err *e);
/* Take an existing work directory, for status and cleaning.  *running: another
 * forge has the lock; p->lock is then -1.  E_NOINPUT: no such directory, or no
 * mark. */
MUST_CHECK int place_visit(struct place *p, const char *dir, bool *running,
                           struct err *e);
/* Remove temporary files that killed steps have left, and of --propagate original states
 * of layers whose next has its Hessians.  all: no other forge works there; otherwise only
 * temporary files of processes that have ended on this host, or older than a day.
 * Returns the number removed.  *e, zero-initialised: set to E_CREATE and the first
 * that cannot be removed; NULL: not wanted. */
int64_t place_collect(const struct place *p, bool all, struct err *e);
/* Remove from a directory of the solver's results, or of states on scratch, what steps
 * leave to those of the layers behind: states, moments, shares.  All layers have their
 * codes.  Returns the number removed. */
int64_t place_collect_passing(const char *dir);
/* Remove the results of other settings: forge's subdirectories (named by a key
 * of their settings) that are not in kept, a list ended by NULL.  Returns the
 * number removed; e as above. */
int64_t place_forget(const struct place *p, const char *const *kept,
                     struct err *e);
/* Remove a checkpoint that this run has made in a work directory. */
void place_drop(const char *checkpoint);
/* Remove all files that forge made, and the directory if it is then empty. */
void place_remove(const struct place *p);
/* The same of a temporary directory, if nothing was computed in it yet. */
void place_remove_unused(const struct place *p);
void place_close(struct place *p); /* releases the lock */

#endif
