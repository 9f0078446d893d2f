/* splice.h - changes to a config.json, all else as it was, byte for byte. */
#ifndef FORGE_SPLICE_H
#define FORGE_SPLICE_H

#include "common/base.h"

enum { CONFIG_EDITS_MAX = 8 };

/* A member of the outermost object. */
struct config_edit {
    const char *key;
    const char *value; /* JSON text, indented as at depth 0; NULL: removed */
};

/* config with these members replaced where they are, or added at the end.
 * config is JSON that json_parse() accepts.  free() *out. */
MUST_CHECK int config_edit(const char *config, size_t len,
                           const struct config_edit *edit, size_t n, char **out,
                           struct err *e);
/* The same for "quantization_config": dict; NULL: removed. */
MUST_CHECK int config_splice(const char *config, size_t len, const char *dict,
                             char **out, struct err *e);

#endif
