/* parallel.h - over how many devices a runtime can spread 4-bit linears.
 *
 * Tensor parallelism of N cuts the inputs of o_proj and of every down_proj
 * into N equal parts, and the outputs of the others.  A group of inputs that
 * share a scale cannot be cut: inputs / N must be a multiple of the group, and
 * N must divide the heads.  Runtimes use powers of two. */
#ifndef FORGE_PARALLEL_H
#define FORGE_PARALLEL_H

#include <stdio.h>

#include "arch/config.h"

/* Print a table: for each kind of linear whose inputs are cut its inputs and
 * the numbers of devices; then what all kinds allow, with this group and with
 * the other usual ones. */
MUST_CHECK int parallel_print(FILE *out, const struct model_config *c,
                              uint64_t group, struct err *e);

#endif
