/* feedback.h - reads the codes that come back from the end of the pipeline:
 * forge-calib writes activations to forge-hessian | ... | forge-solve, whose
 * output is its feedback.
 *
 * A thread reads the pipe all the time; otherwise the ring of tools would
 * deadlock, each waiting to write.  Marks (common/io/sync.h) tell how far the
 * tools have come. */
#ifndef FORGE_FEEDBACK_H
#define FORGE_FEEDBACK_H

#include "model/quantized.h"

struct feedback;

/* path: a named pipe; "-": standard input, a pipe.  Does not wait for its
 * writer.  loans: where codes are lent (device/ledger.h), or NULL.  E_NOINPUT: cannot
 * be opened; E_USAGE: no pipe; E_TEMP. */
MUST_CHECK int feedback_open(struct feedback **f, const char *path,
                             const char *loans, struct err *e);
/* Wait until mark `number` has come back (0: do not wait), then move all codes
 * received so far to c (NULL: keep them here).  Any thread may wait.  E_DATA:
 * the stream is broken or ended before the mark, or quantized_add() refuses
 * codes. */
MUST_CHECK int feedback_wait(struct feedback *f, uint64_t number,
                             struct quantized *c, struct err *e);
/* Wait for the regular end of what comes back (its END frame).  Call after the last
 * mark has been waited for and standard output's stream is finished.  E_DATA,
 * E_TEMP. */
MUST_CHECK int feedback_finish(struct feedback *f, struct err *e);
/* For a tool that ends with an error: close standard output, so that the tools
 * downstream end, and wait at most 10 s until the pipe's writer has ended.  A
 * writer that opened the pipe after our exit would wait for a reader for ever.
 * f NULL: feedback_open() failed for this path, or was not called. */
void feedback_abandon(struct feedback *f, const char *path);
/* Only after feedback_finish(); NULL is allowed. */
void feedback_close(struct feedback *f);

#endif
