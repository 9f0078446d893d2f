/* pretokenize.h - cutting normalized text into pieces for the BPE. */
#ifndef FORGE_PRETOKENIZE_H
#define FORGE_PRETOKENIZE_H

#include "common/io/json.h"
#include "tokenizer/bpe.h"

struct pretokenizer;

/* v: the "pre_tokenizer" of a tokenizer.json: null, Split, Digits, ByteLevel,
 * Metaspace, or a Sequence of them.  Errors as tokenizer_open(). */
MUST_CHECK int pretokenizer_open(struct pretokenizer **p, const struct json *v,
                                 const char *what, struct err *e);
void pretokenizer_close(struct pretokenizer *p); /* NULL is allowed */

bool pretokenizer_is_bytes(
    const struct pretokenizer *p); /* ends in ByteLevel */
/* Asks whether a piece begins the text (Metaspace "first"). */
bool pretokenizer_asks_first(const struct pretokenizer *p);

/* Cut text and encode each piece.  first: it begins the whole input. */
MUST_CHECK int pretokenizer_run(struct pretokenizer *p, struct bpe *b,
                                const char *text, size_t len, bool first,
                                struct bpe_sink *sink, struct err *e);

#endif
