/* plugin.h - forge-cuda.so, and the tables of functions that stages find in it.
 *
 * Each stage that computes on a GPU declares one table in its own folder: a
 * struct of function pointers that begins with `uint32_t version`, the name of
 * the constant that the plug-in exports, and the version of both.  Whoever
 * changes the table, a struct that its functions take or what they mean raises
 * that version; a program and a plug-in that differ in it refuse each other.
 *
 * In all tables: pointers are the host's; matrices are row-major and dense.
 * Every function that returns an int returns 0 or fills *e:
 *     E_DEVICE  the device or a library of CUDA failed
 *     E_TEMP    out of GPU or host memory
 *     E_DATA    as the CPU's function of the same kind says
 *     E_CONFIG  the GPU cannot do it, the CPU may */
#ifndef FORGE_PLUGIN_H
#define FORGE_PLUGIN_H

#include "common/base.h"

/* One device, one stream, one thread at a time; private to the plug-in. */
struct cuda_context;

/* A stage's table, declared by the stage. */
struct plugin_table {
    const char *symbol;
    uint32_t version;
    const void *functions; /* out: the constant; NULL: not loaded */
};

/* Find t's constant in the plug-in of that path, which stays open.  NULL: the
 * forge-cuda.so beside the running program, or in ../lib/4bit-forge from there.
 * E_DEVICE: there is no plug-in, or none that can be opened; it has no such
 * table, or one of another version. */
MUST_CHECK int plugin_load(struct plugin_table *t, const char *path,
                           struct err *e);
/* Whether there is a plug-in, and a driver that may have a device for it:
 * cheap where there is none. */
bool plugin_promises(void);

#endif
