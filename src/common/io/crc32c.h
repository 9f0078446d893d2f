/* crc32c.h - CRC-32C (Castagnoli, RFC 3720), the checksum of frame headers and
 * metadata. */
#ifndef FORGE_CRC32C_H
#define FORGE_CRC32C_H

#include "common/base.h"

/* CRC-32C of n bytes, continued from crc; 0 to begin.  Uses the instruction of
 * SSE 4.2 or ARMv8 if cpu_uses_crc32c(). */
uint32_t crc32c(uint32_t crc, const void *data, size_t n);
/* The same value, computed by a table: fallback and reference of the tests. */
uint32_t crc32c_table(uint32_t crc, const void *data, size_t n);

#endif
