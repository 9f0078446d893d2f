/* plugin.h - find and open forge-cuda.so.
 *
 * It lies beside the running program, or in ../lib/4bit-forge from there, so
 * that programs without it work as they are, on the CPU. */
#ifndef FORGE_PLUGIN_H
#define FORGE_PLUGIN_H

#include "common/base.h"

struct forge_cuda; /* cuda/forge_cuda.h */

/* The table of the plug-in; it stays open.  E_DEVICE: there is no plug-in, it
 * cannot be opened or is of another version. */
MUST_CHECK int plugin_open(const struct forge_cuda **cuda, struct err *e);
/* The same from a given file; for tests. */
MUST_CHECK int plugin_open_file(const struct forge_cuda **cuda,
                                const char *path, struct err *e);
/* Whether there is a plug-in, and a driver that may have a device for it:
 * cheap where there is none. */
bool plugin_promises(void);

#endif
