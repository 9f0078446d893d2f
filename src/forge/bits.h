/* bits.h - forge quantize --bits: rules of forge-grid that keep to a budget,
 * by forge-bits, before anything is quantized. */
#ifndef FORGE_BITS_H
#define FORGE_BITS_H

#include "forge/request.h"

/* Before any work: E_USAGE: --bits goes with no such option; E_CONFIG: the layout has
 * one grid, or the least that the grids of the layout take is more. */
MUST_CHECK int bits_check(const struct request *r, struct err *e);
/* Make the rules in the work directory (keys_bits()), unless they are there, and set
 * r->j.grids to them.  As pipes_run(); errors of globs_add(). */
MUST_CHECK int bits_settle(struct request *r, struct err *e);

#endif
