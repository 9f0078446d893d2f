/* normalize.h - what happens to the text before it is cut into pieces. */
#ifndef FORGE_NORMALIZE_H
#define FORGE_NORMALIZE_H

#include "common/io/json.h"

struct normalizer;

/* v: the "normalizer" of a tokenizer.json: null, NFC, Prepend, Replace, or a
 * Sequence of them.  Errors as tokenizer_open(). */
MUST_CHECK int normalizer_open(struct normalizer **n, const struct json *v,
                               const char *what, struct err *e);
void normalizer_close(struct normalizer *n); /* NULL is allowed */

/* *out lies in the text itself or in n until the next call. */
MUST_CHECK int normalizer_apply(struct normalizer *n, const char *text,
                                size_t len, const char **out, size_t *out_len,
                                struct err *e);
/* Something is put in front of each text. */
bool normalizer_prepends(const struct normalizer *n);

#endif
