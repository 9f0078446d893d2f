/* bpe.h - byte pair encoding (Sennrich et al. 2016) of pieces of text. */
#ifndef FORGE_BPE_H
#define FORGE_BPE_H

#include "common/io/json.h"
#include "tokenizer/ids.h"

struct bpe;

/* Number of pieces whose starts a struct bpe_sink remembers. */
enum { BPE_RECALL = 64 };

/* Receives the ids; zero-initialise the rest. */
struct bpe_sink {
    struct token_ids *out;
    uint64_t pieces;          /* number of pieces so far */
    size_t start[BPE_RECALL]; /* out->count at the start of piece p, at p %
                               * BPE_RECALL */
};

/* model: the "model" object of a tokenizer.json.  bytes: the pre-tokenizer
 * ends in ByteLevel, so the vocabulary is written in its alphabet.  what:
 * prefix of messages.  Errors as tokenizer_open(). */
MUST_CHECK int bpe_open(struct bpe **b, const struct json *model, bool bytes,
                        const char *what, struct err *e);
void bpe_close(struct bpe *b); /* NULL is allowed */

/* Append the ids of a piece text[len], which is valid UTF-8.  E_DATA: a
 * character that the vocabulary cannot express. */
MUST_CHECK int bpe_encode(struct bpe *b, const char *text, size_t len,
                          struct bpe_sink *sink, struct err *e);
/* Append one id as a piece of its own. */
MUST_CHECK int bpe_emit(struct bpe_sink *sink, int32_t id, struct err *e);

/* Id of a token as the file writes it; -1: not in the vocabulary. */
int32_t bpe_find(const struct bpe *b, const char *token, size_t len);
/* Number of tokens in the vocabulary. */
size_t bpe_size(const struct bpe *b);

#endif
