/* solve_table.c - see solve_table.h. */
#include "gptq/solve/solve_table.h"

struct plugin_table solve_plugin = { SOLVE_TABLE, SOLVE_TABLE_VERSION, NULL };
