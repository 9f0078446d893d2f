/* gradient_frames.h - writes gradients as frames while the backward pass goes on.
 *
 * Two rooms take turns: while a thread writes the frames of one, the other is filled.
 * Where the reader can map memory of the device (device/ledger.h), rooms are there and
 * lent, and the last frame of a room has its lease; else they are the host's.
 *
 * Who waits: the thread of the backward pass, for the frames that went into the room
 * before.  They are in the pipe when the other room's are being written, and the reader
 * (forge-hessian) needs no later frame to be done with them.  If it dies, its loans count
 * as returned, and writing fails. */
#ifndef FORGE_GRADIENT_FRAMES_H
#define FORGE_GRADIENT_FRAMES_H

#include "calib/store.h"
#include "common/io/stream.h"
#include "common/math/threads.h"
#include "device/ledger.h"

struct gradient_frames {
    const struct model *m;
    const struct store *s;
    struct stream_writer *out;
    struct ledger *ledger; /* NULL: nothing is lent */

    struct buffer host[2]; /* elements */
    struct buffer narrow;  /* of the device, on the way to them */
    bool lends;
    /* Of the device, if it lends.  They stay until the process ends: the reader may
     * read on when the stream is complete. */
    void *block[2];
    struct loan loan[2];
    int fills;      /* the room that is filled next */
    struct frame f; /* of what is being written, but for numbers and rows */
    char *modules;  /* f's own */
    int64_t first, n, last; /* its sequences; the last one that f.name has */
    struct threads_task task;
    int rc;
    struct err err;
};

/* Lend rooms of n bytes, if the reader can map them and they leave room for gradients
 * on the device.  The caller has set what is in front of `host`; all else is zero. */
MUST_CHECK int gradient_frames_open(struct gradient_frames *t, size_t n,
                                    struct err *e);
/* Write g[rows, width], f32 where the model computes, of n batches from b on: an
 * activation frame for each sequence, in the model's type.  f: name and modules; copied.
 * last: number of the last sequence that f->name has.  E_DATA: a gradient is not finite.
 * Errors of writing, of the frames before, too; E_TEMP; E_DEVICE. */
MUST_CHECK int gradient_frames_put(struct gradient_frames *t,
                                   const struct frame *f, const struct span *b,
                                   int64_t n, const float *g, int64_t width,
                                   int64_t last, struct err *e);
/* Wait until the frames have been written.  Errors as stream_write(). */
MUST_CHECK int gradient_frames_wait(struct gradient_frames *t, struct err *e);
void gradient_frames_close(struct gradient_frames *t); /* zeroed is allowed */

#endif
