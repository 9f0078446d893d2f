/* digests.h - what a finished checkpoint says of its own bytes, and the check.
 *
 *     SHA256SUMS              "HEX  FILE" of every other file, sorted by name,
 *                             as sha256sum -c reads it
 *     forge_checksums.json    {"format":"4bit-forge checksums 1",
 *                              "hash":"XXH3-64",
 *                              "tensors":{NAME: 16 hexadecimal digits, ...}}
 *
 * No loader reads either. */
#ifndef FORGE_DIGESTS_H
#define FORGE_DIGESTS_H

#include "common/io/sha256.h"

#define SUMS_FILE        "SHA256SUMS"
#define CHECKSUMS_FILE   "forge_checksums.json"
#define CHECKSUMS_FORMAT "4bit-forge checksums 1"

struct file_digest {
    char *name;
    char sha256[SHA256_HEX + 1];
};

/* Zero-initialise. */
struct digests {
    struct file_digest *file;
    size_t n;
};

MUST_CHECK int digests_add(struct digests *d, const char *name,
                           const char *sha256, struct err *e);
/* The text of SHA256SUMS; sorts d.  free() *text. */
MUST_CHECK int digests_text(struct digests *d, char **text, size_t *len,
                            struct err *e);
/* The way back.  E_DATA: a line that is none, or a name that is no file's. */
MUST_CHECK int digests_parse(struct digests *d, const char *text, size_t len,
                             struct err *e);
const struct file_digest *digests_find(const struct digests *d,
                                       const char *name);
void digests_release(struct digests *d);

struct check_counts {
    uint64_t files, tensors; /* looked at */
    uint64_t wrong;          /* findings that were said */
};

/* Check all of the directory; say(ctx, file, what) hears of each thing that is
 * not as it was written: once a file, or once a tensor of it.  tensors_only:
 * the checksums of tensors alone, whatever files they lie in.  E_NOINPUT: it
 * has no such lists. */
MUST_CHECK int digests_check(const char *dir, bool tensors_only,
                             void (*say)(void *ctx, const char *file,
                                         const char *what),
                             void *ctx, struct check_counts *n, struct err *e);

#endif
