/* normalize.h - normalization of text before it is split into pieces. */
#ifndef FORGE_NORMALIZE_H
#define FORGE_NORMALIZE_H

#include "common/io/json.h"

struct normalizer;

/* v: the "normalizer" of a tokenizer.json: null, NFC, Prepend, Replace, or a
 * Sequence of these.  Errors as tokenizer_open(). */
MUST_CHECK int normalizer_open(struct normalizer **n, const struct json *v,
                               const char *what, struct err *e);
void normalizer_close(struct normalizer *n); /* NULL is allowed */

/* *out [*out_len]: the normalized text, which is `text` itself or memory of n
 * that is valid until the next call.  E_TEMP; E_DATA: it is far longer than any
 * tokenizer's. */
MUST_CHECK int normalizer_apply(struct normalizer *n, const char *text,
                                size_t len, const char **out, size_t *out_len,
                                struct err *e);
/* Whether something is prepended to each text (Prepend). */
bool normalizer_prepends(const struct normalizer *n);

#endif
