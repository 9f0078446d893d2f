/* module_batch.h - the frames of forge-solve's input, and the modules of them that
 * a GPU solves in one call: a layer's experts.
 *
 * On a GPU what comes is read ahead (common/io/prefetch.h), Hessians of a file
 * too, while it works on what came before.  Only what plain GPTQ does is done
 * here; every other module, those that go wrong, and on the CPU all, are left to
 * module.h. */
#ifndef FORGE_MODULE_BATCH_H
#define FORGE_MODULE_BATCH_H

#include "gptq/solve/module.h"

struct module_batch;

/* Reads r, flushes w (see prefetch.h).  p stays.  Errors as module_open()'s. */
MUST_CHECK int module_batch_open(struct module_batch **t,
                                 const struct module_params *p,
                                 struct stream_reader *r,
                                 struct stream_writer *w, struct err *e);
/* As prefetch_next(), but *n may be 0; ancillary frames of the role hessian come
 * from the file.  A weight at the end of a batch comes in the next one, with its
 * qmeta if it has one.  Where frames are read ahead, the last Hessian of a batch
 * comes again in the next one. */
MUST_CHECK int module_batch_next(struct module_batch *t,
                                 const struct frame **frame, int *n,
                                 struct err *e);
/* The codes of the module whose weight is frame i, and its qmeta the one behind
 * it, and what is to be reported; NULL: it was not solved here. */
const uint8_t *module_batch_codes(const struct module_batch *t, int i,
                                  const struct module_report **report);
/* Whether modules are solved here at all. */
bool module_batch_reads_ahead(const struct module_batch *t);
/* As prefetch_head(). */
const char *module_batch_head(const struct module_batch *t);
void module_batch_close(
    struct module_batch *t); /* NULL is allowed; see prefetch_close() */

#endif
