/* spool.h - hidden states of all sequences between two layers, in a file that
 * has no name and vanishes with the process. */
#ifndef FORGE_SPOOL_H
#define FORGE_SPOOL_H

#include "calib/feed.h"

struct spool;

/* dir: where the file lies.  E_CREATE. */
MUST_CHECK int spool_create(struct spool **s, const char *dir, struct err *e);
void spool_close(struct spool *s); /* NULL is allowed */
/* Append the sequences of a batch and their hidden states. */
MUST_CHECK int spool_append(struct spool *s, const struct batch *b,
                            struct err *e);
int64_t spool_count(const struct spool *s); /* sequences */
/* Read the sequences from *next on into b, as many as make a batch, at
 * POINT_IN, and advance *next (it starts at 0).  1, or 0 at the end. */
MUST_CHECK int spool_read(struct spool *s, const struct model *m, int64_t *next,
                          struct batch *b, struct err *e);
/* Put the hidden states of the batch that ended before `next` back. */
MUST_CHECK int spool_rewrite(struct spool *s, int64_t next,
                             const struct batch *b, struct err *e);

#endif
