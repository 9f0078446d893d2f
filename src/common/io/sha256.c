/* sha256.c - see sha256.h.  The only file that knows libcrypto. */
#include "common/io/sha256.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

enum { BYTES = SHA256_HEX / 2 };

struct sha256 {
    EVP_MD_CTX *ctx;
    bool broken; /* a call of libcrypto failed: no memory */
};

int sha256_open(struct sha256 **out, struct err *e)
{
    struct sha256 *s = mem_zero(1, sizeof(*s), "SHA-256", e);

    if (!s)
        return e->code;
    s->ctx = EVP_MD_CTX_new();
    if (!s->ctx || EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) != 1) {
        sha256_close(s);
        return err_set(e, E_TEMP, "SHA-256: libcrypto cannot begin");
    }
    *out = s;
    return 0;
}

void sha256_add(struct sha256 *s, const void *data, size_t n)
{
    s->broken |= EVP_DigestUpdate(s->ctx, data, n) != 1;
}

/* After a failure the text equals no digest, so that comparisons fail. */
void sha256_hex(struct sha256 *s, char hex[SHA256_HEX + 1])
{
    unsigned char digest[BYTES] = { 0 };

    s->broken |= EVP_DigestFinal_ex(s->ctx, digest, NULL) != 1;
    for (int i = 0; i < BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    if (s->broken)
        hex[0] = '\0';
}

void sha256_close(struct sha256 *s)
{
    if (s)
        EVP_MD_CTX_free(s->ctx);
    free(s);
}

int sha256_of(const void *data, size_t n, char hex[SHA256_HEX + 1],
              struct err *e)
{
    struct sha256 *s;

    if (sha256_open(&s, e))
        return e->code;
    sha256_add(s, data, n);
    sha256_hex(s, hex);
    sha256_close(s);
    return 0;
}
