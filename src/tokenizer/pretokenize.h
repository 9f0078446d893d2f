/* pretokenize.h - splits normalized text into pieces for the BPE. */
#ifndef FORGE_PRETOKENIZE_H
#define FORGE_PRETOKENIZE_H

#include "common/io/json.h"
#include "tokenizer/bpe.h"

struct pretokenizer;

/* v: the "pre_tokenizer" of a tokenizer.json: null, Split, Digits, ByteLevel,
 * Metaspace, or a Sequence of these.  Errors as tokenizer_open(). */
MUST_CHECK int pretokenizer_open(struct pretokenizer **p, const struct json *v,
                                 const char *what, struct err *e);
void pretokenizer_close(struct pretokenizer *p); /* NULL is allowed */

/* Whether the last step is ByteLevel. */
bool pretokenizer_is_bytes(const struct pretokenizer *p);
/* Whether the result depends on a piece beginning the input (Metaspace
 * "first"). */
bool pretokenizer_asks_first(const struct pretokenizer *p);

/* Split text and append the ids of each piece to sink.  first: text begins the
 * input.  Errors as bpe_encode() and pattern_next(). */
MUST_CHECK int pretokenizer_run(struct pretokenizer *p, struct bpe *b,
                                const char *text, size_t len, bool first,
                                struct bpe_sink *sink, struct err *e);

#endif
