/* sync.h - marks that travel through a pipe of tools and come back.
 *
 * forge-calib --feedback reads the output of the pipe that it writes into.  It
 * puts a mark behind the frames it sends.  Tools pass frames on in order, so
 * when the mark returns, everything derived from the frames before it has been
 * received, and memory lent to those frames is free again.  A mark is an
 * ancillary note frame with the JSON text {"sync":N}, N counted from 1. */
#ifndef FORGE_SYNC_H
#define FORGE_SYNC_H

#include "common/io/stream.h"

/* Write mark `number`.  name: what was sent, for people who list the stream. */
MUST_CHECK int sync_write(struct stream_writer *w, const char *name,
                          uint64_t number, struct err *e);
/* Whether f is a mark; *number is then its N. */
bool sync_read(const struct frame *f, uint64_t *number);

#endif
