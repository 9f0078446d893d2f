/* split.h - finds the matches of a pattern one after the other. */
#ifndef FORGE_SPLIT_H
#define FORGE_SPLIT_H

#include "tokenizer/scan.h"

/* A hand-written scanner if the pattern is a known one (scan.h), else
 * Oniguruma, the engine of the tokenizers package; or a literal string. */
struct pattern;

/* Compile a regular expression (Oniguruma, Ruby syntax).  what: prefix of
 * messages.  E_DATA: not a valid expression; E_TEMP. */
MUST_CHECK int pattern_regex(struct pattern **p, const char *regex,
                             const char *what, struct err *e);
/* The same without the hand-written scanners, for their tests. */
MUST_CHECK int pattern_oniguruma(struct pattern **p, const char *regex,
                                 const char *what, struct err *e);
/* Matches the string `text`. */
MUST_CHECK int pattern_literal(struct pattern **p, const char *text,
                               const char *what, struct err *e);
/* Matches what fn finds. */
MUST_CHECK int pattern_scanner(struct pattern **p, scan_fn *fn, struct err *e);
void pattern_close(struct pattern *p); /* NULL is allowed */

/* State of one pass over a text; one at a time per pattern. */
struct pattern_walk {
    const char *text; /* the caller's; for Oniguruma perhaps a copy with
                       * stand-ins (unicode.h) */
    size_t len;
    size_t pos;  /* the search continues here */
    size_t last; /* 1 + end of the last match; 0: none yet */
};

/* Start a pass over text[len], valid UTF-8.  E_TEMP. */
MUST_CHECK int pattern_begin(struct pattern *p, struct pattern_walk *w,
                             const char *text, size_t len, struct err *e);
/* 1: text[*start, *end) is the next match, possibly empty; 0: none; E_DATA:
 * Oniguruma gave up (its limits). */
MUST_CHECK int pattern_next(struct pattern *p, struct pattern_walk *w,
                            size_t *start, size_t *end, struct err *e);

#endif
