/* chat.h - a prompt in the form that a chat model was trained on.
 *
 * Templates are programs in Jinja2.  They are not run: what family a template is
 * of is told by its marks (chat.c has the table), and the families' forms are
 * known.  One that is of none is refused, since a form that is nearly right makes
 * a model speak nearly well. */
#ifndef FORGE_CHAT_H
#define FORGE_CHAT_H

#include "tokenizer/decode.h"

struct chat;

/* The template of MODEL/chat_template.jinja, or of tokenizer_config.json.  *c is
 * NULL where the model has none.  E_CONFIG: it is of no known family. */
MUST_CHECK int chat_open(struct chat **c, const char *model, struct err *e);
void chat_close(struct chat *c); /* NULL is allowed */

/* One turn of the user's, with `system` before it (NULL: what the template says),
 * up to where the model's begins; special tokens are spelled out.  E_CONFIG: the
 * family takes no system. */
MUST_CHECK int chat_prompt(const struct chat *c, const char *system,
                           const char *user, size_t len, struct text *out,
                           struct err *e);
/* The token that ends a turn; NULL: none of its own. */
const char *chat_end(const struct chat *c);

#endif
