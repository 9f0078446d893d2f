/* cardtext.h - reads a model card, README.md, as text: the YAML front matter that
 * model hubs read, and what forge-shard wrote into it.  It is text of others: what
 * is taken from it is short, and of plain characters. */
#ifndef FORGE_CARDTEXT_H
#define FORGE_CARDTEXT_H

#include "common/io/modeldir.h"

#define CARD_FILE   "README.md"
#define CARD_MARK   "Made by 4bit-forge" /* in each card that we write */
#define CARD_RECIPE "## How it was made\n\n```\n" /* in front of its steps */

/* *text = the model's card, free() it; NULL: it has none, or it is no text.
 * E_DATA, E_IO, E_TEMP. */
MUST_CHECK int card_read(const struct modeldir *model, char **text,
                         struct err *e);
/* The front matter, the lines between two "---"; *end: its end.  NULL: there is
 * none; card may be NULL. */
const char *card_front(const char *card, const char **end);
/* The end of the front matter's entry at p, continuation lines included. */
const char *card_entry_end(const char *p, const char *end);
bool card_entry_is(const char *p, const char *key);
/* The base model that a card of ours names, its characters as they are; free() it.
 * NULL with e->code 0: none; NULL with *e: E_TEMP. */
MUST_CHECK char *card_base_name(const char *card, struct err *e);
/* to[cap] = the row "| name | ... |" of a card of ours, where it fits and
 * text_is_plain(); else "". */
void card_row(const char *card, const char *name, char *to, size_t cap);
/* Letters, digits, blanks and -_.,;/+()' alone: no URL, and nothing of Markdown
 * or YAML. */
bool text_is_plain(const char *text, size_t n);

/* Whether a line is a step of a recipe as we write it, "forge-x --y=z": letters,
 * digits, blanks and -_.,/+:%=*?[], so no command of a shell but itself. */
bool recipe_is_step(const char *line, size_t n);
/* Copy the steps of text, which are divided by `between`, one to a line, up to the first
 * that is none, and max bytes at most; free() it.  NULL with e->code 0: there is none;
 * NULL with *e: E_TEMP. */
MUST_CHECK char *recipe_lines(const char *text, const char *between, size_t max,
                              struct err *e);
/* The recipe in the model's card, if that is ours, one step per line; free()
 * it.  NULL with e->code 0: there is none; NULL with *e: it cannot be read. */
MUST_CHECK char *card_recipe(const struct modeldir *model, struct err *e);

#endif
