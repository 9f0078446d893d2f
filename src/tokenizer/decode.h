/* decode.h - token ids to text, as a model's tokenizer.json says.
 *
 * The text is that of Hugging Face's tokenizers package for the same ids, and
 * comes as soon as it is settled: bytes of a character that is not whole yet, and
 * tokens of bytes (<0x0A>) that others may follow, wait. */
#ifndef FORGE_DECODE_H
#define FORGE_DECODE_H

#include "common/base.h"

struct decoder;

/* A growing text; starts as zeros, free() p at the end. */
struct text {
    char *p;
    size_t len, cap;
};
MUST_CHECK int text_add(struct text *t, const char *p, size_t n, struct err *e);

/* As tokenizer_open(), of the same file.  specials: special tokens are text, too,
 * else they are left out. */
MUST_CHECK int decoder_open(struct decoder **d, const char *path, bool specials,
                            struct err *e);
MUST_CHECK int decoder_parse(struct decoder **d, const char *json, size_t len,
                             const char *what, bool specials, struct err *e);
void decoder_close(struct decoder *d); /* NULL is allowed */

/* Append to `out` what is settled with one more id.  An id that no token has is
 * left out. */
MUST_CHECK int decoder_add(struct decoder *d, int32_t id, struct text *out,
                           struct err *e);
/* Append what waits; the next id begins another text. */
MUST_CHECK int decoder_end(struct decoder *d, struct text *out, struct err *e);
/* Id of a token as the file spells it; -1: there is none. */
int32_t decoder_id(const struct decoder *d, const char *token);

#endif
