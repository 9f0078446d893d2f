/* quantout.h - the quantization_config of a checkpoint: the dictionaries that
 * the loaders were seen to need, forge-layouts(5), "CONFIGURATION". */
#ifndef FORGE_QUANTOUT_H
#define FORGE_QUANTOUT_H

#include "layout/runfacts.h"
#include "shard/plainlist.h"

/* The dictionary, as JSON; indent as in a config.json.  free() *json. */
MUST_CHECK int quant_dict(const struct run_facts *facts,
                          const struct plain_list *plain, char **json,
                          struct err *e);

#endif
