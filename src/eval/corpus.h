/* corpus.h - the token sequences on which two models are compared. */
#ifndef FORGE_CORPUS_H
#define FORGE_CORPUS_H

#include "common/io/stream.h"

/* Sequence i is ids[start[i]..start[i + 1] - 1]. */
struct corpus {
    int32_t *ids;
    size_t *start; /* [count + 1] */
    size_t count;  /* number of sequences */
    size_t
        positions; /* positions that are scored: all but each sequence's last */
    size_t longest; /* tokens of the longest sequence */
};

/* Initialise *c from all `tokens` frames of the stream; other frames are
 * skipped.  corpus_release() it.  predict: predictions will be compared, else
 * states.  E_DATA: a frame is not I32 [n], an id is not in 0..vocab-1, there are
 * no tokens, or none to predict; E_TEMP. */
MUST_CHECK int corpus_read(struct corpus *c, struct stream_reader *in,
                           int64_t vocab, bool predict, struct err *e);
void corpus_release(struct corpus *c);

#endif
