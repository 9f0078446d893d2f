/* parallel.h - the tensor-parallel sizes that a model's 4-bit linears allow.
 *
 * Tensor parallelism over N devices cuts the inputs of o_proj and of every
 * down_proj into N equal parts, and the outputs of all other linears.  A group
 * of inputs shares a scale and cannot be cut: inputs / N must be a multiple of
 * the group size; and for o_proj N must divide the number of attention heads.
 * Runtimes use powers of two. */
#ifndef FORGE_PARALLEL_H
#define FORGE_PARALLEL_H

#include <stdio.h>

#include "arch/config.h"

/* Print a table: for each kind of linear whose inputs are cut, the number of
 * inputs and the possible N (1..64); then the N that all kinds allow, with this
 * group size and with 128, 64 and 32.  E_TEMP. */
MUST_CHECK int parallel_print(FILE *out, const struct model_config *c,
                              uint64_t group, struct err *e);

#endif
