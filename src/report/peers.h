/* peers.h - evaluations of other checkpoints of the same model, such as one that
 * was rounded to nearest, to show beside the run's. */
#ifndef FORGE_PEERS_H
#define FORGE_PEERS_H

#include "work/records.h"

enum { PEERS_MAX = 6, PEER_NAME = 64 };

struct peer {
    char name[PEER_NAME];
    struct records figures;
};

/* Zero-initialise; peers_release() when done. */
struct peers {
    struct peer peer[PEERS_MAX];
    size_t count;
};

/* FILE of "NAME=FILE"; NULL: it is not of that form, or NAME is too long. */
const char *peers_file(const char *arg);
/* E_USAGE: an argument before arg[i] has the same name. */
MUST_CHECK int peers_new(const char *const *arg, int i, struct err *e);
/* Add "NAME=FILE": lines of forge-eval --json under a name.  E_USAGE: not of
 * that form, or more than PEERS_MAX; errors of records_read(). */
MUST_CHECK int peers_add(struct peers *p, const char *arg, struct err *e);
/* Whether all were evaluated on the tokens of the run's own evaluation.
 * E_DATA: the run has none, or one of them is of other tokens or of another
 * model. */
MUST_CHECK int peers_check(const struct peers *p, const struct records *run,
                           struct err *e);
void peers_release(struct peers *p);

/* The figures of a whole checkpoint: those without a layer, else the last line
 * of --by-layer; NULL: none. */
const struct figures *figures_whole(const struct records *r);

#endif
