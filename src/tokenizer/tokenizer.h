/* tokenizer.h - text to token ids, as a model's tokenizer.json says.
 *
 * The ids are those of Hugging Face's tokenizers package for the byte-level
 * BPE kinds (GPT-2, Llama 3, Qwen 2 and 3, DeepSeek V3) and for the byte
 * fallback kinds (Llama 2, Mistral).  What a file asks for beyond that is
 * refused by name when it is opened; nothing is approximated. */
#ifndef FORGE_TOKENIZER_H
#define FORGE_TOKENIZER_H

#include "tokenizer/ids.h"

struct tokenizer;

/* Read a tokenizer.json: the file path, or of a model's directory, by the rules
 * of common/io/modeldir.h.  E_NOINPUT: no such file; E_DATA: not strict JSON, or
 * a part missing, of the wrong type or contradicting another; E_CONFIG: a kind
 * of model, normalizer, pre-tokenizer or post-processor that is not
 * implemented, by name. */
MUST_CHECK int tokenizer_open(struct tokenizer **t, const char *path,
                              struct err *e);
/* The same from memory; what: for messages, e.g. "'tokenizer.json'". */
MUST_CHECK int tokenizer_parse(struct tokenizer **t, const char *json,
                               size_t len, const char *what, struct err *e);
/* The text of that file alone, free() it, and what it is called in messages. */
enum { TOKENIZER_WHAT = 300 };
MUST_CHECK int tokenizer_text(const char *path, char **text, size_t *len,
                              char what[TOKENIZER_WHAT], struct err *e);
void tokenizer_close(struct tokenizer *t); /* NULL is allowed */

/* Append the ids of a whole text, without the special tokens that the
 * post-processor adds; special tokens spelled out in the text are found.
 * E_DATA: the text is not valid UTF-8 (with the offset of the first such
 * byte), or it holds a character that the vocabulary cannot express while the
 * unknown token is missing too.  One call at a time on the same tokenizer:
 * it keeps a cache. */
MUST_CHECK int tokenizer_encode(struct tokenizer *t, const char *text,
                                size_t len, struct token_ids *out,
                                struct err *e);
/* The same for the beginning of a longer text.  *settled: how many of the
 * appended ids stay whatever comes after; the last 64 pieces do not count,
 * which is far more than any rule looks ahead. */
MUST_CHECK int tokenizer_encode_start(struct tokenizer *t, const char *text,
                                      size_t len, struct token_ids *out,
                                      size_t *settled, struct err *e);

/* What the post-processor puts before and behind one sequence. */
const struct token_ids *tokenizer_prefix(const struct tokenizer *t);
const struct token_ids *tokenizer_suffix(const struct tokenizer *t);

#endif
