/* device_bytes.h - estimates of the GPU memory that the forward pass needs. */
#ifndef FORGE_DEVICE_BYTES_H
#define FORGE_DEVICE_BYTES_H

#include "arch/config.h"

/* Rows (tokens) of a batch: enough for the matrix products to be fast. */
enum { BATCH_ROWS = 2048 };

/* Bytes of the largest layer with a batch of BATCH_ROWS rows: its weights (of
 * its experts two), the outputs of its linears, and f32 sums of a product.
 * item: bytes of an element. */
double layers_device_bytes(const struct model_config *c, size_t item);
/* Bytes of a token's states: the residual stream and the widest activation. */
double token_device_bytes(const struct model_config *c, size_t item);

#endif
