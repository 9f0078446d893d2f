/* scan.h - hand-written scanners for the patterns of the known families. */
#ifndef FORGE_SCAN_H
#define FORGE_SCAN_H

#include "common/base.h"

/* Finds the leftmost match that starts at pos or later: true, *start and
 * *end; pos <= *start < *end <= len. */
typedef bool scan_fn(const char *text, size_t len, size_t pos, size_t *start,
                     size_t *end);

/* The scanner that finds what this regular expression (Ruby syntax) finds;
 * NULL when it is none of the known ones, letter by letter. */
scan_fn *scan_find(const char *regex);

/* GPT-2's pattern, which ByteLevel implies. */
extern const char scan_gpt2_regex[];

/* What is numeric, one character at a time (Digits). */
bool scan_number(const char *text, size_t len, size_t pos, size_t *start,
                 size_t *end);

#endif
