/* batch.h - reads sequences from a stream, in batches ready for layer_run().
 *
 * The input is tokens frames, or hidden frames with the states that enter one
 * layer; the first frame decides.  Behind all hidden states of the model those
 * of the reference stream (the original model) may follow, named
 * "model.layers.3.original".
 *
 * States at a point inside a layer are named "model.layers.3.mlp_in" (the
 * reference may be further: "model.layers.3.mlp_mid.original"); behind all hidden
 * states come activation frames of these names, the activations there.  States behind
 * a layer that lack its routed experts' outputs are named "model.layers.3.hidden"
 * (expert_states.h). */
#ifndef FORGE_BATCH_H
#define FORGE_BATCH_H

#include "common/io/stream.h"
#include "model/model.h"

/* Sequences of together at most BATCH_ROWS rows, or one longer sequence. */
struct batch {
    struct state s;       /* their states, in memory of the host */
    struct buffer tokens; /* or int32_t, where the input is tokens, instead */
    int64_t n, rows;      /* number of sequences, of their tokens */
    int64_t length[BATCH_SEQUENCES];    /* tokens of each */
    uint64_t sequence[BATCH_SEQUENCES]; /* numbers as in frames, from 1 */
    bool last;                          /* no batch follows */
};

struct batch_reader;

/* Of tokens, every parts-th sequence, from number `part` on, both counted from
 * 0. */
struct batch_part {
    int64_t part, parts;
};

/* Reads up to the first sequence.  layer: the layer that the states must enter;
 * -1: the one that the first frame names.  part NULL: all sequences.  Frames of
 * other roles are written to `pass` (NULL: dropped).  If the input is tokens,
 * loads the model's embedding.  in, m and pass must outlive the reader.  E_DATA:
 * no sequence, or one of another layer or model; E_USAGE: none of this part; E_TEMP; errors of loading the
 * embedding. */
MUST_CHECK int batch_reader_open(struct batch_reader **f,
                                 struct stream_reader *in, struct model *m,
                                 int64_t layer, const struct batch_part *part,
                                 struct stream_writer *pass, struct err *e);
void batch_reader_close(struct batch_reader *f); /* NULL is allowed */
bool batch_reader_is_tokens(const struct batch_reader *f);
/* The layer that the states enter; 0 for tokens. */
int64_t batch_reader_layer(const struct batch_reader *f);
/* The point where the states are that are being read; POINT_IN for tokens. */
enum point batch_reader_point(const struct batch_reader *f);

/* 1: *b holds the next sequences, at POINT_IN or as tokens; 0: no more
 * sequences of this stream.  *b is zero-initialised, and its memory is used
 * again; state_release() b->s and buffer_release() b->tokens at the end.
 * E_DATA: a frame of the wrong shape or layer, a token beyond the vocabulary, or
 * states that are not finite; E_TEMP. */
MUST_CHECK int batch_reader_next(struct batch_reader *f, struct batch *b,
                                 struct err *e);

/* Call after batch_reader_next() has returned 0.  1: states of the reference
 * stream follow, and batch_reader_next() returns them from now on; 0: the input
 * has ended. */
int batch_reader_reference(struct batch_reader *f);

/* Behind the states, at points inside a layer: *data is that of the next frame of an
 * activation or routing.  E_DATA: there is none, or it is not of want's role, name,
 * sequence, type and shape. */
MUST_CHECK int batch_reader_inside(struct batch_reader *f,
                                   const struct frame *want, const void **data,
                                   struct err *e);

/* E_DATA: an element of rows[n, width], in the model's dtype, is not finite;
 * `what` and `sequence` name it in the message. */
MUST_CHECK int check_finite(const struct model *m, const void *rows, int64_t n,
                            int64_t width, const char *what, uint64_t sequence,
                            struct err *e);

#endif
