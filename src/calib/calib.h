/* calib.h - a calibration run over one layer, or over all: states of all
 * sequences go through the model layer by layer, and the inputs of its linears
 * are written as activation frames. */
#ifndef FORGE_CALIB_H
#define FORGE_CALIB_H

#include "calib/run.h"

/* Read the --codes files; one with a % is read when its layer comes.  E_USAGE: a
 * second one; errors of quantized_read(). */
MUST_CHECK int calib_codes(struct calib *c, const char *const *file, int n,
                           struct err *e);
/* Run c.  Memory holds the weights of one layer at most (with feedback: of its
 * linears up to the next point), and the states of all sequences in a store
 * (store.h).
 *
 * Without c->feedback every layer runs with the weights as they are, or with
 * c->codes.  With it, a layer runs from point to point.  The activations of a
 * point are written if a linear that reads them has no codes yet; the run then
 * waits until the codes of those linears have come back, and goes on with them.
 * A linear that gets no codes keeps its weights.
 *
 * With c->until a run ends behind the activations of that point (or of all points
 * of that layer, and the hidden states that leave it, in c->hidden), those of the
 * experts that read the same input included, and linears run with the codes that
 * there are.  It may begin with states at a point of a layer.
 *
 * With c->reference (and feedback, or until), a second store, the reference stream, goes
 * through the layers with the original weights.  From both streams come the
 * companions that tell how far an activation has drifted, or which output a
 * linear should have (emit.h).
 *
 * Ends c->out (calib_finish()) before memory is given back.
 *
 * E_DATA: the input, codes or states are wrong; other errors of reading the
 * model, writing and feedback.  After an error the stores are not freed: a
 * thread may still write from them, and the process is expected to end. */
MUST_CHECK int calib_run(struct calib *c, struct err *e);
/* End c->out, and wait for the end of what comes back.  E_IO; as feedback_finish(). */
MUST_CHECK int calib_finish(struct calib *c, struct err *e);

#endif
