/* textnote.h - reads what forge-tokens notes about a text in the HEAD of a
 * stream: {"programs":[{"text":{"sha256":..,"sequences":..,"ids":..}},..]}. */
#ifndef FORGE_TEXTNOTE_H
#define FORGE_TEXTNOTE_H

#include "common/io/json.h"
#include "common/io/sha256.h"

struct text_note {
    char sha256[SHA256_HEX + 1]; /* of the text; "": not known */
    int64_t sequences, ids;      /* that were cut from it */
};

/* Take the note of a program of HEAD; *t stays as it is where there is none. */
void text_note_take(struct text_note *t, const struct json *program);
/* The same of all programs of HEAD; head NULL: there is none.  E_DATA: head is
 * no JSON; E_TEMP. */
MUST_CHECK int text_note_head(struct text_note *t, const char *head,
                              struct err *e);

#endif
