/* sync.h - marks that travel through a chain of tools and come back.
 *
 * A tool that gets its own chain's output back (forge-calib --feedback) puts a
 * mark behind what it sends.  All tools pass frames on in order, so when the
 * mark returns, everything that was made of the frames before it has returned.
 * A mark is an ancillary note, {"sync":N}, N counted from 1. */
#ifndef FORGE_SYNC_H
#define FORGE_SYNC_H

#include "common/io/stream.h"

/* name: what was sent, for people. */
MUST_CHECK int sync_write(struct stream_writer *w, const char *name,
                          uint64_t number, struct err *e);
/* Whether f is a mark; then *number is its. */
bool sync_read(const struct frame *f, uint64_t *number);

#endif
