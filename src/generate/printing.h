/* printing.h - texts on standard output. */
#ifndef FORGE_PRINTING_H
#define FORGE_PRINTING_H

#include "generate/completion.h"

/* Write n bytes, at once.  E_IO. */
MUST_CHECK int completion_print(void *arg, const char *text, size_t n,
                                struct err *e);
/* A line of JSON.  E_IO, E_TEMP. */
MUST_CHECK int completion_json(struct completion *t, struct err *e);
/* Remark: "9 tokens of prompt, 110 tokens/s; 64 tokens, 51.3 tokens/s". */
void completion_rates(const struct completion *t);

#endif
