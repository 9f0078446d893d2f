/* sha256.h - SHA-256 (FIPS 180-4) by OpenSSL's libcrypto, which uses the CPU's
 * SHA instructions: above 1 GB/s with them. */
#ifndef FORGE_SHA256_H
#define FORGE_SHA256_H

#include "common/base.h"

enum { SHA256_HEX = 64 }; /* digits of a digest in hexadecimal */

struct sha256;

/* E_TEMP: no memory. */
MUST_CHECK int sha256_open(struct sha256 **s, struct err *e);
void sha256_add(struct sha256 *s, const void *data, size_t n);
/* The digest of all bytes added, in lower-case hexadecimal, as sha256sum(1)
 * prints it.  If libcrypto failed: a text that equals no digest. */
void sha256_hex(struct sha256 *s, char hex[SHA256_HEX + 1]);
void sha256_close(struct sha256 *s); /* NULL is allowed */
/* The digest of n bytes in memory.  E_TEMP. */
MUST_CHECK int sha256_of(const void *data, size_t n, char hex[SHA256_HEX + 1],
                         struct err *e);

#endif
