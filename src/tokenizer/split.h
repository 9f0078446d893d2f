/* split.h - finding the matches of one pattern, piece after piece. */
#ifndef FORGE_SPLIT_H
#define FORGE_SPLIT_H

#include "tokenizer/scan.h"

/* A pattern: a hand-written scanner where its text is one that we know, or
 * else Oniguruma, which is the engine that the tokenizers package uses. */
struct pattern;

MUST_CHECK int pattern_regex(struct pattern **p, const char *regex,
                             const char *what, struct err *e);
/* The same without the hand-written scanners, to test those. */
MUST_CHECK int pattern_oniguruma(struct pattern **p, const char *regex,
                                 const char *what, struct err *e);
MUST_CHECK int pattern_literal(struct pattern **p, const char *text,
                               const char *what, struct err *e);
MUST_CHECK int pattern_scanner(struct pattern **p, scan_fn *fn, struct err *e);
void pattern_close(struct pattern *p); /* NULL is allowed */

/* One walk over a text; at most one on a pattern at a time. */
struct pattern_walk {
    const char *text; /* or, for Oniguruma, a copy with stand-ins */
    size_t len;
    size_t pos;  /* search from here */
    size_t last; /* end of the last match, plus 1; 0: none yet */
};

MUST_CHECK int pattern_begin(struct pattern *p, struct pattern_walk *w,
                             const char *text, size_t len, struct err *e);
/* 1 and the next match, perhaps an empty one; 0: none; E_DATA when the
 * engine gives up on the text. */
MUST_CHECK int pattern_next(struct pattern *p, struct pattern_walk *w,
                            size_t *start, size_t *end, struct err *e);

#endif
