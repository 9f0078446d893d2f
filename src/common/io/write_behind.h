/* write_behind.h - asynchronous appending to a file.
 *
 * Appended bytes are gathered in aligned chunks of 1 MiB; up to 7 of them are
 * being written by io_uring with O_DIRECT while the caller goes on.  A chunk
 * that is written short or refused is written again by pwrite, so the only
 * errors reported are those of pwrite. */
#ifndef FORGE_WRITE_BEHIND_H
#define FORGE_WRITE_BEHIND_H

#include "common/base.h"

struct write_behind;

/* Append to the regular file fd from offset `at`, a multiple of 1 MiB.  NULL:
 * no io_uring, no O_DIRECT or no memory; the caller writes by itself. */
struct write_behind *write_behind_open(int fd, uint64_t at);
/* Append n bytes; they are copied.  0, or -errno of this or an earlier
 * write. */
MUST_CHECK int write_behind_write(struct write_behind *b, const void *buf,
                                  size_t n);
/* The offset up to which the file has what was appended. */
uint64_t write_behind_there(const struct write_behind *b);
/* Wait until everything is written (not fsynced) and truncate the file behind
 * the last byte.  0, or -errno of the first failure.  Frees b. */
MUST_CHECK int write_behind_finish(struct write_behind *b);
/* Wait for writes in flight, discard the rest, free b.  NULL is allowed. */
void write_behind_drop(struct write_behind *b);

#endif
