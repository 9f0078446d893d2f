/* tiles.h - reads linears in torch's int4pack layouts into the form of
 * parts.h.
 *
 *     int4pack      weight_int4pack  U8 [O, I/2]  tiles: layout/int4pack.h
 *                   scales_and_zeros [G, O, 2]    s, (8 - zero) s
 *     int4pack-xpu  weight_int4pack  I32 [O, I/8] words as in parts.h
 *                   scales           [G, O]
 *                   zeros            I8 [G, O]
 *     both          input_perm       I32 [I] act-order only: input at each
 *                                    place */
#ifndef FORGE_TILES_H
#define FORGE_TILES_H

#include "checkpoint/parts.h"

/* Whether the checkpoint has one of these layouts. */
bool tiles_are(const struct checkpoint *c);
/* As packed_read(); codes: whether to read them, too. */
MUST_CHECK int tiles_read(struct checkpoint *c, const char *module, bool codes,
                          struct packed *p, struct err *e);

#endif
