/* place.h - a work directory as a place: made with a mark, and only what forge
 * made in it is ever removed.
 *
 * The mark is a file of the directory.  A directory without it belongs to
 * somebody else and is refused unless it is empty.  In one that has it, a file
 * is ours if its whole name is one that the steps give, in the directory where
 * they give it; no other name is looked at, and no other directory entered. */
#ifndef FORGE_PLACE_H
#define FORGE_PLACE_H

#include "common/base.h"

#define PLACE_MARK "forge-work"

struct place {
    const char *dir;
    int lock;       /* descriptor, inherited by steps; -1 */
    bool temporary; /* made by forge, to be removed when all is done */
};

/* Could dir be used?  E_CREATE: it is no directory, or not empty and without a
 * mark, or cannot be made. */
MUST_CHECK int place_check(const char *dir, struct err *e);
/* Make it, with its parents, or take it as it is, and lock it.  keep: the user
 * named it; otherwise, if it is made here, it is temporary.  E_CREATE; E_TEMP:
 * another forge works there, also after two seconds. */
MUST_CHECK int place_open(struct place *p, const char *dir, bool keep,
                          struct err *e);
/* Take one that has a mark, to look after it; *running: somebody else has the
 * lock, and ours is -1.  E_NOINPUT: no such directory, or no mark. */
MUST_CHECK int place_visit(struct place *p, const char *dir, bool *running,
                           struct err *e);
/* Remove temporaries that killed steps left; all: nobody else works there, else
 * only those of processes that are gone from this host, or a day old.  How
 * many. */
int64_t place_collect(const struct place *p, bool all);
/* Remove what was made for settings other than those of these directories (NULL
 * ends them).  How many. */
int64_t place_forget(const struct place *p, const char *const *kept);
/* Remove all that forge made; the directory too, if that was all. */
void place_remove(const struct place *p);
void place_close(struct place *p);

#endif
