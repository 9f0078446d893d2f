/* hash.h - xxHash; on x86-64 the part that chooses instructions at run time, where
 * the system's library has it.  All give the same hashes. */
#ifndef FORGE_HASH_H
#define FORGE_HASH_H

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#endif
