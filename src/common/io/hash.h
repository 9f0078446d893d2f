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

#endif
