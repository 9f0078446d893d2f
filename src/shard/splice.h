/* splice.h - changes members of a config.json and keeps all other bytes as they
 * are. */
#ifndef FORGE_SPLICE_H
#define FORGE_SPLICE_H

#include "common/base.h"

enum { CONFIG_EDITS_MAX = 8 };

/* A change to a member of the outermost object. */
struct config_edit {
    const char *key;
    const char *value; /* JSON text, indented as at depth 0; NULL: removed */
};

/* *out = config with these members replaced where they are, or added at the
 * end; free() it.  config: a JSON object that json_parse() accepts; n <=
 * CONFIG_EDITS_MAX.  E_TEMP. */
MUST_CHECK int config_edit(const char *config, size_t len,
                           const struct config_edit *edit, size_t n, char **out,
                           struct err *e);
/* The same with the single member "quantization_config": dict; NULL:
 * removed. */
MUST_CHECK int config_splice(const char *config, size_t len, const char *dict,
                             char **out, struct err *e);

#endif
