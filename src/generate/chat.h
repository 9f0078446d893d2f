/* chat.h - formats a prompt as the chat template of the model does.
 *
 * Templates are Jinja2 programs.  They are not executed: a template's family
 * is recognized by strings that it contains (chat.c has the table), and the
 * families' formats are built in.  An unknown template is refused: with a
 * format that is nearly right a model answers a little worse, which nobody
 * would notice. */
#ifndef FORGE_CHAT_H
#define FORGE_CHAT_H

#include "tokenizer/decode.h"

struct chat;

/* Read MODEL/chat_template.jinja, or the chat_template of
 * tokenizer_config.json.  *c is NULL if the model has neither.  E_CONFIG: a
 * template of no known family; E_DATA: malformed files; E_TEMP. */
MUST_CHECK int chat_open(struct chat **c, const char *model, struct err *e);
void chat_close(struct chat *c); /* NULL is allowed */

/* Append to `out` a conversation of a system message (NULL: the template's
 * default, if any) and one user message user[len], up to where the model's
 * answer begins.  Special tokens are written as text.  E_CONFIG: the family
 * has no system message. */
MUST_CHECK int chat_prompt(const struct chat *c, const char *system,
                           const char *user, size_t len, struct text *out,
                           struct err *e);
/* The token that ends an answer; NULL: only the tokenizer's end-of-text
 * token. */
const char *chat_end(const struct chat *c);

#endif
