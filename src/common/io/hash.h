/* hash.h - XXH3-64 of xxHash.  On x86-64 the variant that chooses instructions
 * at run time, if the installed library has it; all variants give the same
 * hashes. */
#ifndef FORGE_HASH_H
#define FORGE_HASH_H

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include "common/io/file.h"
#include "common/io/sha256.h"

enum { HASH_ROOM = 4 << 20 };

/* *hash = XXH3-64 of the file's bytes at..end-1, which go through sha, too, unless
 * it is NULL.  buf: room for HASH_ROOM bytes.  E_DATA: the file ends before; E_IO,
 * E_TEMP. */
MUST_CHECK int hash_range(uint64_t *hash, struct file *f, uint64_t at,
                          uint64_t end, void *buf, struct sha256 *sha,
                          struct err *e);

#endif
