/* cardeval.h - what a comparison with the original found, in the card of a
 * finished checkpoint. */
#ifndef FORGE_CARDEVAL_H
#define FORGE_CARDEVAL_H

#include "common/io/json.h"

/* Could it be done?  E_CONFIG: dir has no card of ours; E_CREATE: it cannot be
 * written to. */
MUST_CHECK int card_eval_check(const char *dir, struct err *e);
/* Section "Evaluation" of dir's README.md, and the digest of that in SHA256SUMS;
 * one that is there is replaced.  result: the object of forge-eval --json; text:
 * SHA-256 of what was evaluated on, in hexadecimal digits. */
MUST_CHECK int card_eval(const char *dir, const struct json *result,
                         const char *text, struct err *e);

#endif
