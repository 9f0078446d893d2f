/* feedback.h - the codes that come back from the end of the chain.
 *
 * A thread of its own drains the pipe all the time, or the ring of tools would
 * stand still: each waiting to write, nobody reading.  Marks (common/io/sync.h)
 * say how far it has come. */
#ifndef FORGE_FEEDBACK_H
#define FORGE_FEEDBACK_H

#include "model/quantized.h"

struct feedback;

/* path: a named pipe; "-": standard input, which then is one.  Does not wait
 * for its writer.  E_NOINPUT, E_USAGE: it is no pipe. */
MUST_CHECK int feedback_open(struct feedback **f, const char *path,
                             struct err *e);
/* Wait until mark `number` has returned (0: do not wait), and add all codes
 * that have come to c (NULL: leave them).  Any thread may wait.  E_DATA: the
 * stream is broken, or ended before the mark. */
MUST_CHECK int feedback_wait(struct feedback *f, uint64_t number,
                             struct quantized *c, struct err *e);
/* Wait for the stream's regular end.  After the last mark was waited for. */
MUST_CHECK int feedback_finish(struct feedback *f, struct err *e);
/* Before exiting after an error that was printed: close standard output, and
 * wait until who writes to the pipe has gone, at most 10 s.  Somebody who
 * opens it to write when we are gone would wait for a reader for ever.  f NULL:
 * feedback_open() failed for this path. */
void feedback_abandon(struct feedback *f, const char *path);
/* Only after feedback_finish(); NULL is allowed. */
void feedback_close(struct feedback *f);

#endif
