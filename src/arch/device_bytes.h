/* device_bytes.h - what layers take on a device. */
#ifndef FORGE_DEVICE_BYTES_H
#define FORGE_DEVICE_BYTES_H

#include "arch/config.h"

/* Rows that make the products fast: sequences are batched up to so many. */
enum { BATCH_ROWS = 2048 };

/* Bytes that the largest layer takes with a batch of BATCH_ROWS rows: its weights,
 * of experts two, what its linears put out, and sums of a product.  item: bytes of
 * an element. */
double layers_device_bytes(const struct model_config *c, size_t item);
/* Bytes that the states of one token take: the residual stream, and the widest
 * activation of any layer. */
double token_device_bytes(const struct model_config *c, size_t item);

#endif
