/* w4a16_gpu.c - see w4a16_table.h. */
#include "w4a16/w4a16_table.h"

struct plugin_table w4a16_plugin = { W4A16_TABLE, W4A16_TABLE_VERSION, NULL };
