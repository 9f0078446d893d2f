/* added.h - added tokens of a tokenizer.json: strings that are found in the
 * text before it is split into pieces. */
#ifndef FORGE_ADDED_H
#define FORGE_ADDED_H

#include "common/io/json.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalize.h"

struct added;

/* list: the "added_tokens" array, or NULL.  A token in the vocabulary of b has
 * its id there, another the next free id, as in Hugging Face's tokenizers
 * package.  n: normalizer for tokens that are matched in normalized text.
 * Errors as tokenizer_open(). */
MUST_CHECK int added_open(struct added **a, const struct json *list,
                          const struct bpe *b, struct normalizer *n,
                          const char *what, struct err *e);
void added_close(struct added *a); /* NULL is allowed */

/* A match: text[start, end), with the blanks that lstrip and rstrip include. */
struct added_match {
    size_t start, end;
    int32_t id;
};

/* State of one pass over a text; zero-initialise. */
struct added_walk {
    size_t scan;  /* the search continues here */
    size_t taken; /* end of the last match, with its blanks */
};

/* 1: *m is the next match, leftmost-longest; 0: none.  normalized: search for
 * the tokens with "normalized": true, else for the others. */
int added_next(const struct added *a, bool normalized, const char *text,
               size_t len, struct added_walk *w, struct added_match *m);

#endif
