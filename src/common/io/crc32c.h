/* crc32c.h - the checksum of headers and metadata. */
#ifndef FORGE_CRC32C_H
#define FORGE_CRC32C_H

#include "common/base.h"

/* CRC-32C (Castagnoli) of n bytes, continuing from crc (0 to begin).  Uses
 * the instruction of SSE 4.2 or ARMv8 where there is one. */
uint32_t crc32c(uint32_t crc, const void *data, size_t n);
/* The same by a table: what the other one is tested against. */
uint32_t crc32c_table(uint32_t crc, const void *data, size_t n);

#endif
