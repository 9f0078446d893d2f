/* module_batch.h - forge-solve's input in batches of frames, whose modules the
 * GPU solves in one call (a layer's experts are many small modules of one
 * shape).
 *
 * With a GPU a thread prefetches the next batch (common/io/prefetch.h),
 * including the Hessians of a file, while the GPU solves the current one.  Each
 * module that fails here, and without a GPU all of them, are left to module.h. */
#ifndef FORGE_MODULE_BATCH_H
#define FORGE_MODULE_BATCH_H

#include "device/lent_fp8.h"
#include "gptq/solve/module.h"

struct module_batch;

/* Reads frames of r; flushes w whenever it waits for input (prefetch.h).  l: where
 * frames are lent, or NULL.  fishers: module_fishers().  All must outlive it.  Errors as
 * module_open()'s. */
MUST_CHECK int module_batch_open(struct module_batch **t,
                                 const struct module_params *p,
                                 struct fishers *fishers, struct ledger *l,
                                 struct stream_reader *r,
                                 struct stream_writer *w, struct err *e);
/* The next batch, frame[0..*n), with its modules solved; valid until the next
 * call.  1: a batch, whose *n may be 0; 0: end of input; negative: as
 * prefetch_next(), E_TEMP, E_DEVICE.
 * Hessian frames marked ancillary were read from the file of Hessians.  A
 * weight at the end of a batch is held back and comes first in the next one, in
 * front of its qmeta.  With prefetching, a batch's last Hessian comes again in
 * the next batch, and Hessians and cross moments may be loans, as weights in 8-bit
 * floats are. */
MUST_CHECK int module_batch_next(struct module_batch *t,
                                 const struct frame **frame, int *n,
                                 struct err *e);
/* The codes of the module whose weight is frame i and whose qmeta is frame i +
 * 1, *grids, which the effort may have chosen anew, and *report; all valid until
 * the next batch.  NULL: not solved here. */
const uint8_t *module_batch_codes(const struct module_batch *t, int i,
                                  struct frame *grids,
                                  const struct module_report **report);
/* *f = frame i with its payload in the host's memory, valid until the next call for one
 * of its kind; weights of 8-bit floats as bf16.  E_DATA: its lender is dead; E_TEMP, E_DEVICE. */
MUST_CHECK int module_batch_fetch(struct module_batch *t, int i,
                                  struct frame *f, struct err *e);
/* Whether this run prefetches and solves batches at all. */
bool module_batch_reads_ahead(const struct module_batch *t);
/* As prefetch_head(). */
const char *module_batch_head(const struct module_batch *t);
/* NULL is allowed.  As prefetch_close(): at the end, or after an error. */
void module_batch_close(struct module_batch *t);

#endif
