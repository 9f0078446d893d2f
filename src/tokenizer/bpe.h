/* bpe.h - byte pair encoding: one piece of text to ids. */
#ifndef FORGE_BPE_H
#define FORGE_BPE_H

#include "common/io/json.h"
#include "tokenizer/ids.h"

struct bpe;

/* How many pieces back the starts of pieces are remembered. */
enum { BPE_RECALL = 64 };

/* Where ids go. */
struct bpe_sink {
    struct token_ids *out;
    uint64_t pieces;          /* seen so far */
    size_t start[BPE_RECALL]; /* out->count where each of the last began */
};

/* model: the "model" object of a tokenizer.json.  bytes: pieces come from a
 * ByteLevel pre-tokenizer, so that the vocabulary is spelled in its alphabet.
 * what: for messages.  Errors as tokenizer_open(). */
MUST_CHECK int bpe_open(struct bpe **b, const struct json *model, bool bytes,
                        const char *what, struct err *e);
void bpe_close(struct bpe *b); /* NULL is allowed */

/* Append the ids of a piece of valid UTF-8. */
MUST_CHECK int bpe_encode(struct bpe *b, const char *text, size_t len,
                          struct bpe_sink *sink, struct err *e);
/* Append one id that is a piece of its own. */
MUST_CHECK int bpe_emit(struct bpe_sink *sink, int32_t id, struct err *e);

/* Id of a token of the vocabulary as the file spells it; -1 when absent. */
int32_t bpe_find(const struct bpe *b, const char *token, size_t len);
/* Number of tokens in the vocabulary. */
size_t bpe_size(const struct bpe *b);

#endif
