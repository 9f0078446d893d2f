/* digests.h - the lists of digests in a finished checkpoint, and the check
 * against them.
 *
 *     SHA256SUMS              "HEX  FILE" of every other file, sorted by name,
 *                             as sha256sum -c reads it; FILE may be DIR/FILE
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

/* Zero-initialise; digests_release() when done. */
struct digests {
    struct file_digest *file; /* [n] */
    size_t n;
};

/* Add a file's SHA-256, in hexadecimal; both strings are copied.  E_TEMP. */
MUST_CHECK int digests_add(struct digests *d, const char *name,
                           const char *sha256, struct err *e);
/* *text = SHA256SUMS; sorts d.  free() *text.  E_TEMP. */
MUST_CHECK int digests_text(struct digests *d, char **text, size_t *len,
                            struct err *e);
/* Parse SHA256SUMS.  E_DATA: a malformed line, or a name that is not as
 * modeldir_path_ok() wants it; E_TEMP. */
MUST_CHECK int digests_parse(struct digests *d, const char *text, size_t len,
                             struct err *e);
/* The entry of a file; NULL: there is none. */
const struct file_digest *digests_find(const struct digests *d,
                                       const char *name);
void digests_release(struct digests *d);

struct check_counts {
    uint64_t files, tensors; /* checked */
    uint64_t wrong;          /* calls of say() */
};

/* Check the directory against its lists.  say(ctx, file, what) is called, from
 * several threads but one at a time, for each file or tensor that differs.
 * tensors_only: check only the tensors' checksums, in whatever files they lie.
 * 0, also with differences; E_NOINPUT: there are no lists; E_IO; E_TEMP. */
MUST_CHECK int digests_check(const char *dir, bool tensors_only,
                             void (*say)(void *ctx, const char *file,
                                         const char *what),
                             void *ctx, struct check_counts *n, struct err *e);
/* Whether the tensors are what forge_checksums.json says, for those who check more
 * than that.  0, *tensors = 0: there is no such file; E_DATA: the first that differs,
 * "'DIR': 'FILE': why"; as digests_check(). */
MUST_CHECK int digests_hold(const char *dir, uint64_t *tensors, struct err *e);

#endif
