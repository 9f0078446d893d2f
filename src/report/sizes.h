/* sizes.h - what the model and the result take, as a whole and module by
 * module. */
#ifndef FORGE_SIZES_H
#define FORGE_SIZES_H

#include "report/workdir.h"

/* Set w->bytes_in, w->bytes_out, w->params and the bytes of each module, by the
 * headers of the checkpoints; they stay 0 where one cannot be read.  E_TEMP. */
MUST_CHECK int sizes_read(struct workdir *w, struct err *e);

/* Bits for each weight of the linears whose bytes are known, and for each
 * number of the whole model; NAN: not known. */
double sizes_linear_bits(const struct workdir *w);
double sizes_bits(const struct workdir *w);
/* Number of linears in 8 bits, as far as is known. */
uint64_t sizes_eight(const struct workdir *w);
/* ... and of one linear. */
double sizes_module_bits(const struct module *m);

#endif
