/* tokenizer.h - text to token ids, by a model's tokenizer.json.
 *
 * The ids are those of Hugging Face's tokenizers package, for byte-level BPE
 * (GPT-2, Llama 3, Qwen 2 and 3, DeepSeek V3) and for BPE with byte fallback
 * (Llama 2, Mistral).  What a file contains beyond that is refused by name
 * when it is opened; nothing is approximated. */
#ifndef FORGE_TOKENIZER_H
#define FORGE_TOKENIZER_H

#include "tokenizer/ids.h"

struct tokenizer;

/* path: a tokenizer.json, or a model's directory that has one (links as in
 * common/io/modeldir.h).  E_NOINPUT: no such file; E_DATA: not strict JSON, or
 * a part missing, of the wrong type, or in contradiction to another; E_CONFIG:
 * a kind of model, normalizer, pre-tokenizer or post-processor that is not
 * implemented, by name; E_TEMP. */
MUST_CHECK int tokenizer_open(struct tokenizer **t, const char *path,
                              struct err *e);
/* The same from json[len]; what: prefix of messages, e.g.
 * "'tokenizer.json'". */
MUST_CHECK int tokenizer_parse(struct tokenizer **t, const char *json,
                               size_t len, const char *what, struct err *e);
enum { TOKENIZER_WHAT = 300 };
/* Only read the file, path as tokenizer_open(): *text [*len], free() it; what:
 * its name for messages. */
MUST_CHECK int tokenizer_text(const char *path, char **text, size_t *len,
                              char what[TOKENIZER_WHAT], struct err *e);
void tokenizer_close(struct tokenizer *t); /* NULL is allowed */

/* Append the ids of text[len].  Special tokens written in the text are
 * recognized; those that the post-processor adds are not appended
 * (tokenizer_prefix(), tokenizer_suffix()).  E_DATA: not valid UTF-8 (with the
 * offset of the first bad byte), or a character that the vocabulary cannot
 * express, without an unknown token; E_TEMP.  One call at a time per
 * tokenizer, which has a cache. */
MUST_CHECK int tokenizer_encode(struct tokenizer *t, const char *text,
                                size_t len, struct token_ids *out,
                                struct err *e);
/* The same for a text that is the beginning of a longer one.  *settled: how
 * many of the appended ids stay the same whatever follows; those of the last
 * 64 pieces are left out, which is more than any rule looks ahead. */
MUST_CHECK int tokenizer_encode_start(struct tokenizer *t, const char *text,
                                      size_t len, struct token_ids *out,
                                      size_t *settled, struct err *e);

/* Ids that the post-processor adds before and behind one sequence. */
const struct token_ids *tokenizer_prefix(const struct tokenizer *t);
const struct token_ids *tokenizer_suffix(const struct tokenizer *t);

#endif
