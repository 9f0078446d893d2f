/* share.h - quantizes a share of a layer's routed experts: the loop of calib.h for
 * these experts alone, from files of states (expert_states.h) of all parts of the
 * tokens, one file of each part.
 *
 * The tokens that either stream routes to an expert of the share are kept, in the order of
 * the files; so each expert's rows, and all that is made of them, are those of a run over
 * all tokens, part after part. */
#ifndef FORGE_SHARE_H
#define FORGE_SHARE_H

#include "calib/run.h"

struct share {
    const char *const *file; /* [parts] */
    int64_t parts;
    const char *expect_key; /* of the files, or NULL */
    int64_t share, shares;  /* experts share, share + shares, ... */
    const char
        *outputs; /* outputs.h, complete before the last frame of calib.out
                          * is; NULL: the last layer, where nobody wants them */
};

/* With c->feedback.  E_DATA: the files do not fit the model or one another; E_USAGE: one
 * is no regular file; other errors as of calib_run(). */
MUST_CHECK int share_run(struct calib *c, const struct share *s, struct err *e);

#endif
