/* ahead.h - reads the weights that forge-weights --join will write next into
 * memory that it lends to the tools behind it (device/ledger.h); 8-bit floats as they
 * are stored, where these compute on a GPU (device/lent_fp8.h).
 *
 * A thread reads linears in the order of the model, as far as there is room; each
 * is taken when a Hessian names it.  Where another one is named, the thread goes
 * on from there. */
#ifndef FORGE_AHEAD_H
#define FORGE_AHEAD_H

#include "checkpoint/weights.h"
#include "device/ledger.h"

struct ahead;

/* *a: NULL where l is.  All three must outlive it.  E_TEMP. */
MUST_CHECK int ahead_open(struct ahead **a, struct weights_plan *p,
                          const struct weights_choice *choice, struct ledger *l,
                          struct err *e);
/* Write the `weight` frame of a module as a loan.  1: written; 0: it cannot be
 * lent, or cannot be read, so that weights_write_module() is to be called (within
 * ahead_hold()).  a may be NULL.  Errors as stream_write(). */
MUST_CHECK int ahead_write(struct ahead *a, const char *module,
                           struct stream_writer *w, uint64_t *bytes,
                           struct err *e);
/* Keep the thread from reading the checkpoint, or let it go on. */
void ahead_hold(struct ahead *a, bool hold);
void ahead_close(struct ahead *a); /* NULL is allowed */

#endif
