/* prefetch.h - batches of input frames, read in advance by a thread.
 *
 * With params.bytes > 0 a thread reads the next batch into memory of its own
 * while the caller works on the current one.  A batch ends when it is full, or
 * when the caller asks for it and the next frame has not arrived yet: a tool
 * upstream that waits for this tool's output (forge-calib --feedback) must not
 * wait for a full batch.
 *
 * With params.bytes = 0 there is no thread: a batch is the next frame, still
 * in the reader's memory, preceded by frames that were kept. */
#ifndef FORGE_PREFETCH_H
#define FORGE_PREFETCH_H

#include "common/io/stream.h"

struct prefetch;

/* Defaults of the stages.  128 MiB hold the Hessians and weights of six
 * experts with 2,048 inputs and 768 outputs; with 512 MiB the first batches
 * took too long to fill. */
enum { PREFETCH_BYTES = 128 << 20, PREFETCH_FRAMES = 512 };

/* Settings of prefetch_open(). */
struct prefetch_params {
    size_t bytes; /* payload bytes of a full batch; up to three times as many
                   * are held, and one more frame per batch.  The first
                   * batches are smaller: 1/16, 1/8, 1/4, 1/2.  0: frame by
                   * frame, `before` is not called */
    int frames;   /* frames of a full batch */
    /* Called by the thread before f is appended to have[0..n).  May insert one
     * frame, *more, in front of f: return 1, with more->data from
     * prefetch_alloc() and texts that live until the return.  0: insert
     * nothing.  Negative: an error, reported behind the frames so far.  NULL:
     * no callback. */
    int (*before)(void *arg, struct prefetch *a, const struct frame *f,
                  const struct frame *have, int n, struct frame *more,
                  struct err *e);
    void *arg;
};

/* Read from r, and flush w (NULL: nothing is written) whenever the caller has to
 * wait.  Both remain the caller's, but only this module may use r until
 * prefetch_close().  E_TEMP. */
MUST_CHECK int prefetch_open(struct prefetch **a, struct stream_reader *r,
                             struct stream_writer *w,
                             const struct prefetch_params *p, struct err *e);
/* 1: *frame[0..*n) is the next batch, valid until the next call that returns
 * 1.  0: end of the input.  Negative: the error of stream_next(), after all
 * frames before it have been returned. */
MUST_CHECK int prefetch_next(struct prefetch *a, const struct frame **frame,
                             int *n, struct err *e);
/* Drop the rest of the input, to learn how it ends: its error, or E_DATA where it is
 * complete. */
int prefetch_drop(struct prefetch *a, struct err *e);
/* Frame i of the current batch will be at the front of the next batch again. */
void prefetch_keep(struct prefetch *a, int i);
/* stream_head() as of the first batch; valid until prefetch_close(). */
const char *prefetch_head(const struct prefetch *a);
/* For params.before only: n bytes, 4096-aligned, for the data of the frame
 * that it inserts; they live as long as that frame. */
MUST_CHECK void *prefetch_alloc(struct prefetch *a, size_t n, struct err *e);
/* NULL is allowed.  Waits for the thread: call it at the end of the input or
 * after an error, when the thread cannot be waiting for input. */
void prefetch_close(struct prefetch *a);

#endif
