/* spool.h - payloads that came through a pipe, in a file without a name until they
 * are copied to their shards. */
#ifndef FORGE_SPOOL_H
#define FORGE_SPOOL_H

#include "common/base.h"

struct spool;

/* The file lies in directory `dir`.  E_CREATE; E_TEMP. */
MUST_CHECK int spool_open(struct spool **s, const char *dir, struct err *e);
/* Append n bytes to the payload.  E_IO: write error, disk full. */
MUST_CHECK int spool_add(struct spool *s, const void *buf, size_t n,
                         struct err *e);
/* The payload ends, and the next one begins.  Its offset, and *hash = its XXH3-64. */
uint64_t spool_end(struct spool *s, uint64_t *hash);
/* Read n bytes at offset `at`; any number of threads may, beside one that appends.
 * E_IO. */
MUST_CHECK int spool_read(const struct spool *s, uint64_t at, void *buf,
                          size_t n, struct err *e);
/* The payload [at, at+n) is not needed any more: give its blocks back to the file
 * system, where that can make holes. */
void spool_drop(const struct spool *s, uint64_t at, uint64_t n);
void spool_close(struct spool *s); /* NULL is allowed */

#endif
