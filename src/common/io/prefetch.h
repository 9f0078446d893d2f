/* prefetch.h - the frames of a tool that takes them in batches.
 *
 * Read ahead: a thread gathers a batch of frames in memory of its own while the caller
 * works on the batch before.  A batch ends where it is full; and where the
 * caller has nothing left to do and the next frame would have to be waited for,
 * so that nobody upstream who waits for this tool's output waits in vain.
 *
 * Or frame by frame, where nothing is gained by more at once: a batch is the
 * next frame, as it lies in the reader, behind those that were kept. */
#ifndef FORGE_PREFETCH_H
#define FORGE_PREFETCH_H

#include "common/io/stream.h"

struct prefetch;

/* What is enough: 2,048 inputs wide and 768 outputs high, six experts' Hessians
 * and weights.  With 512 MiB the first batches are waited for. */
enum { PREFETCH_BYTES = 128 << 20, PREFETCH_FRAMES = 512 };

struct prefetch_params {
    size_t bytes; /* of payloads: a batch that has as many is full; three times
                     as many are held, and a frame more each.  0: frame by
                     frame; before is not called */
    int frames;   /* and so is one of so many */
    /* By the reading thread, before f is put behind have[n]: 1: *more comes in
     * front of it, its data in prefetch_room()'s memory, its texts the callee's;
     * 0: nothing.  NULL: never anything. */
    int (*before)(void *arg, struct prefetch *a, const struct frame *f,
                  const struct frame *have, int n, struct frame *more,
                  struct err *e);
    void *arg;
};

/* Reads r, and flushes w whenever the caller has to wait; both stay the
 * caller's, but r is left alone until prefetch_close().  E_TEMP. */
MUST_CHECK int prefetch_open(struct prefetch **a, struct stream_reader *r,
                             struct stream_writer *w,
                             const struct prefetch_params *p, struct err *e);
/* 1: a batch, frame[0..*n), which stays until the next call that gives one; 0:
 * the input has ended; negative: as stream_next(), when all frames before have
 * been given. */
MUST_CHECK int prefetch_next(struct prefetch *a, const struct frame **frame,
                             int *n, struct err *e);
/* Frame i of the batch comes again, in front of the next one. */
void prefetch_keep(struct prefetch *a, int i);
/* As stream_head() when the first batch came. */
const char *prefetch_head(const struct prefetch *a);
/* n bytes, aligned as a payload, that live as long as the frame that they are
 * put into; of prefetch_params.before alone. */
MUST_CHECK void *prefetch_room(struct prefetch *a, size_t n, struct err *e);
/* NULL is allowed.  Not while the thread may wait for input: at the end, or
 * after an error. */
void prefetch_close(struct prefetch *a);

#endif
