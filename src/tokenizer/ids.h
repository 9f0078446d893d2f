/* ids.h - a growing list of token ids. */
#ifndef FORGE_IDS_H
#define FORGE_IDS_H

#include "common/base.h"

/* Zero-initialise; free() id at the end. */
struct token_ids {
    int32_t *id;
    size_t count, cap;
};

/* Append n ids.  E_TEMP. */
MUST_CHECK int token_ids_add(struct token_ids *ids, const int32_t *id, size_t n,
                             struct err *e);

#endif
