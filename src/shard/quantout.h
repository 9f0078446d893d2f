/* quantout.h - the config.json of a quantized checkpoint.
 *
 * All members of the source's config stay as they are, byte for byte; only
 * quantization_config is replaced or added.  The dictionaries are those that
 * the loaders were seen to need: forge-layouts(5), "CONFIGURATION". */
#ifndef FORGE_QUANTOUT_H
#define FORGE_QUANTOUT_H

#include "common/runfacts.h"
#include "shard/plainlist.h"

/* The dictionary, as JSON; indent as in a config.json.  free() *json. */
MUST_CHECK int quant_dict(const struct run_facts *facts,
                          const struct plain_list *plain, char **json,
                          struct err *e);
/* config with "quantization_config": dict in place of what it had, or at the
 * end; dict NULL: removed.  config is JSON that json_parse() accepts. */
MUST_CHECK int config_splice(const char *config, size_t len, const char *dict,
                             char **out, struct err *e);

#endif
