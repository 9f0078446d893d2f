/* added.h - tokens that are found in the text before anything else. */
#ifndef FORGE_ADDED_H
#define FORGE_ADDED_H

#include "common/io/json.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalize.h"

struct added;

/* list: the "added_tokens" array, or NULL.  Ids as the tokenizers package
 * gives them: those of the vocabulary, or else the next free one. */
MUST_CHECK int added_open(struct added **a, const struct json *list,
                          const struct bpe *b, struct normalizer *n,
                          const char *what, struct err *e);
void added_close(struct added *a); /* NULL is allowed */

/* What is found from an offset on. */
struct added_match {
    size_t start, end; /* with the blanks that lstrip and rstrip take */
    int32_t id;
};

/* State of one walk over a text; zero it first. */
struct added_walk {
    size_t scan;  /* where the search goes on */
    size_t taken; /* end of the last match, with its blanks */
};

/* 1: *m is the next added token (of those matched before the normalizer, or
 * of the others); 0: there is none. */
int added_next(const struct added *a, bool normalized, const char *text,
               size_t len, struct added_walk *w, struct added_match *m);

#endif
