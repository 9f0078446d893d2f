/* batch.h - sequences out of a stream, in batches ready to run.
 *
 * The input is tokens, or the hidden states that enter a layer.  Which, is
 * decided by the first frame; all others must be the same.  Behind hidden states
 * those of the original model may come, named "model.layers.3.original". */
#ifndef FORGE_BATCH_H
#define FORGE_BATCH_H

#include "common/io/stream.h"
#include "model/model.h"

/* Some sequences: together about BATCH_ROWS rows, or one that is longer. */
struct batch {
    struct state s;
    int64_t n;                          /* sequences */
    int64_t length[BATCH_SEQUENCES];    /* tokens of each */
    uint64_t sequence[BATCH_SEQUENCES]; /* as frames number them, from 1 */
    bool last;                          /* there are no more */
};

struct batch_reader;

/* Reads up to the first sequence.  layer: which layer the states must enter;
 * -1: whichever the first one names.  Frames that are neither tokens nor
 * hidden states go to pass as they come (NULL: nowhere).  Tokens are embedded;
 * the model's embedding is loaded for that.  E_DATA: no sequence, or one of
 * another layer or model. */
MUST_CHECK int batch_reader_open(struct batch_reader **f,
                                 struct stream_reader *in, struct model *m,
                                 int64_t layer, struct stream_writer *pass,
                                 struct err *e);
void batch_reader_close(struct batch_reader *f); /* NULL is allowed */
bool batch_reader_is_tokens(const struct batch_reader *f);
int64_t batch_reader_layer(const struct batch_reader *f); /* 0 for tokens */

/* 1: *b holds the next sequences, at POINT_IN; 0: there were no more.
 * E_DATA: a frame of the wrong shape or layer; states that are not finite. */
MUST_CHECK int batch_reader_next(struct batch_reader *f, struct batch *b,
                                 struct err *e);

/* Behind the last sequence: 1: those of the original model follow, which
 * batch_reader_next() gives from now on; 0: the input has ended. */
int batch_reader_reference(struct batch_reader *f);

/* E_DATA when one of n rows of `width` elements is not finite: what and
 * sequence name it. */
MUST_CHECK int check_finite(const struct model *m, const void *rows, int64_t n,
                            int64_t width, const char *what, uint64_t sequence,
                            struct err *e);

#endif
