/* quantout.h - writes the quantization_config of a checkpoint, with the keys
 * that the loaders need: forge-layouts(5), "CONFIGURATION". */
#ifndef FORGE_QUANTOUT_H
#define FORGE_QUANTOUT_H

#include "layout/runfacts.h"
#include "shard/mixedgrid.h"
#include "shard/plainlist.h"

/* *json = the dictionary, indented as in a config.json; free() it.  E_TEMP. */
MUST_CHECK int quant_dict(const struct run_facts *facts,
                          const struct plain_list *plain,
                          const struct mixed_grids *mixed, char **json,
                          struct err *e);

#endif
