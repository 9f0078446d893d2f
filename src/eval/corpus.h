/* corpus.h - the token sequences that two models are compared on. */
#ifndef FORGE_CORPUS_H
#define FORGE_CORPUS_H

#include "common/io/stream.h"

/* Sequence i is ids[start[i]] .. ids[start[i + 1] - 1]. */
struct corpus {
    int32_t *ids;
    size_t *start;    /* count + 1 entries */
    size_t count;     /* sequences */
    size_t positions; /* that predict a token: all but each sequence's last */
    size_t longest;   /* tokens of the longest sequence */
};

/* Take all `tokens` frames of the stream; others are passed over.  E_DATA: a
 * frame is not I32 [n], an id is negative or not below vocab, or there is no
 * position to score (at least one sequence of two tokens). */
MUST_CHECK int corpus_read(struct corpus *c, struct stream_reader *in,
                           int64_t vocab, struct err *e);
void corpus_release(struct corpus *c);

#endif
