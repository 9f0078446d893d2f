/* cardeval.h - adds the result of a comparison with the original model to the
 * card of a finished checkpoint (forge eval --card). */
#ifndef FORGE_CARDEVAL_H
#define FORGE_CARDEVAL_H

#include "common/io/json.h"

/* Check, before the evaluation, that card_eval() can work.  E_CONFIG: dir has
 * no card of ours; E_CREATE: dir cannot be written to. */
MUST_CHECK int card_eval_check(const char *dir, struct err *e);
/* Write, or replace, the section "Evaluation" of dir's README.md, and update
 * the card's digest in SHA256SUMS.  result: the object of forge-eval --json, with
 * the text's SHA-256: of predictions, or of hidden states. */
MUST_CHECK int card_eval(const char *dir, const struct json *result,
                         struct err *e);

#endif
