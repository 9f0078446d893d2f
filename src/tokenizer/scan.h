/* scan.h - hand-written scanners for the split patterns of known model
 * families. */
#ifndef FORGE_SCAN_H
#define FORGE_SCAN_H

#include "common/base.h"

/* Find the leftmost match that starts at pos or later: true, with pos <=
 * *start < *end <= len. */
typedef bool scan_fn(const char *text, size_t len, size_t pos, size_t *start,
                     size_t *end);

/* The scanner equivalent to this regular expression (Oniguruma, Ruby syntax);
 * NULL: not one of the known patterns, compared as strings. */
scan_fn *scan_find(const char *regex);

/* GPT-2's pattern, which ByteLevel uses by default. */
extern const char scan_gpt2_regex[];

/* A scan_fn that matches single numeric characters (Digits). */
bool scan_number(const char *text, size_t len, size_t pos, size_t *start,
                 size_t *end);

#endif
