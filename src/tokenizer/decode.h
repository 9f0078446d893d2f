/* decode.h - token ids to text, by the "decoder" of a tokenizer.json.
 *
 * The text is that of Hugging Face's tokenizers package for the same ids, as a
 * stream: output is delayed only while it depends on later ids, that is within
 * a UTF-8 character or a run of byte tokens (<0x0A>). */
#ifndef FORGE_DECODE_H
#define FORGE_DECODE_H

#include "common/base.h"

struct decoder;

/* A growing byte string.  Zero-initialise; free() p at the end. */
struct text {
    char *p;
    size_t len, cap;
};
/* Append n bytes.  E_TEMP. */
MUST_CHECK int text_add(struct text *t, const char *p, size_t n, struct err *e);

/* Read a tokenizer.json, paths and errors as tokenizer_open().  specials:
 * special tokens become text; else they are left out. */
MUST_CHECK int decoder_open(struct decoder **d, const char *path, bool specials,
                            struct err *e);
/* The same from memory; what: prefix of messages. */
MUST_CHECK int decoder_parse(struct decoder **d, const char *json, size_t len,
                             const char *what, bool specials, struct err *e);
void decoder_close(struct decoder *d); /* NULL is allowed */

/* Append to `out` the text that one more id determines.  An unknown id adds
 * nothing. */
MUST_CHECK int decoder_add(struct decoder *d, int32_t id, struct text *out,
                           struct err *e);
/* Append the delayed rest; the next id begins another text. */
MUST_CHECK int decoder_end(struct decoder *d, struct text *out, struct err *e);
/* Id of a token as the file writes it; -1: none. */
int32_t decoder_id(const struct decoder *d, const char *token);

#endif
