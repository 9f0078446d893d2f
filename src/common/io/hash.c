/* hash.c - see hash.h. */
#include "common/io/hash.h"

int hash_range(uint64_t *hash, struct file *f, uint64_t at, uint64_t end,
               void *buf, struct sha256 *sha, struct err *e)
{
    XXH3_state_t *s = XXH3_createState();
    int rc = s ? 0 : err_set(e, E_TEMP, "XXH3: out of memory");

    if (s)
        XXH3_64bits_reset(s);
    while (!rc && at < end) {
        size_t n = end - at < HASH_ROOM ? (size_t)(end - at) : HASH_ROOM;

        rc = file_read(f, buf, n, at, e);
        if (!rc && sha)
            sha256_add(sha, buf, n);
        if (!rc)
            XXH3_64bits_update(s, buf, n);
        at += n;
    }
    if (!rc)
        *hash = XXH3_64bits_digest(s);
    XXH3_freeState(s);
    return rc;
}
