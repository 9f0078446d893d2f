/* write_behind.h - writing behind the producer's back.
 *
 * Appended bytes are gathered in aligned chunks of 1 MiB, several of which are
 * on their way to the disk through io_uring and O_DIRECT while the caller goes
 * on.  A chunk that comes back short or refused is written again by pwrite, so
 * that no error is reported that pwrite does not report. */
#ifndef FORGE_WRITE_BEHIND_H
#define FORGE_WRITE_BEHIND_H

#include "common/base.h"

struct write_behind;

/* Go on writing the regular file fd from offset `at`, a multiple of 1 MiB.
 * NULL: there is no io_uring, or no O_DIRECT here, or no memory to spare; the
 * caller writes by himself. */
struct write_behind *write_behind_open(int fd, uint64_t at);
/* Append.  0, or -errno of this or an earlier write. */
MUST_CHECK int write_behind_write(struct write_behind *b, const void *buf,
                                  size_t n);
/* Wait until all of it is written (not synced) and the file ends where it
 * ends; 0, or -errno of the first failure.  Frees b. */
MUST_CHECK int write_behind_finish(struct write_behind *b);
/* Wait for what is on its way, forget the rest, free b.  NULL is allowed. */
void write_behind_drop(struct write_behind *b);

#endif
