/* together.h - the modules of a stream that are there at the same time, solved
 * on the GPU together: a layer's experts.
 *
 * What comes is read ahead (common/io/prefetch.h), Hessians of a file too, while the
 * GPU works on what came before.  Only what plain GPTQ does on the GPU is done
 * here; every other module, and those that go wrong, are left to module.h. */
#ifndef FORGE_TOGETHER_H
#define FORGE_TOGETHER_H

#include "gptq/solve/module.h"

struct together;

/* Whether there is a GPU, and modules are solved as it solves several. */
bool together_wanted(const struct module_params *p);
/* Reads r, flushes w (see ahead.h).  p stays.  Errors as module_open()'s. */
MUST_CHECK int together_open(struct together **t, const struct module_params *p,
                             struct stream_reader *r, struct stream_writer *w,
                             struct err *e);
/* As prefetch_next(); frames of the role hessian that are ancillary come from the
 * file.  A weight at the end of a batch comes in the next one, with its qmeta
 * if it has one. */
MUST_CHECK int together_next(struct together *t, const struct frame **frame,
                             int *n, struct err *e);
/* The codes of the module whose weight is frame i, and its qmeta the one behind
 * it, and what is to be noted; NULL: they were not solved. */
const uint8_t *together_codes(const struct together *t, int i,
                              const struct module_report **note);
/* As prefetch_head(). */
const char *together_head(const struct together *t);
/* As prefetch_close(); NULL is allowed. */
void together_close(struct together *t);

#endif
