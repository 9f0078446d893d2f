/* sha256.h - SHA-256 as sha256sum(1) prints it, by OpenSSL's libcrypto, which
 * takes the CPU's instructions for it: above 1 GB/s where there are some. */
#ifndef FORGE_SHA256_H
#define FORGE_SHA256_H

#include "common/base.h"

enum { SHA256_HEX = 64 };

struct sha256;

/* E_TEMP: no memory. */
MUST_CHECK int sha256_open(struct sha256 **s, struct err *e);
void sha256_add(struct sha256 *s, const void *data, size_t n);
/* The digest of all that was added, in small hexadecimal digits. */
void sha256_hex(struct sha256 *s, char hex[SHA256_HEX + 1]);
void sha256_close(struct sha256 *s); /* NULL is allowed */
/* All of it for bytes in memory. */
MUST_CHECK int sha256_of(const void *data, size_t n, char hex[SHA256_HEX + 1],
                         struct err *e);

#endif
