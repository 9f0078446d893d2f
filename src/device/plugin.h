/* plugin.h - loads forge-cuda.so, and the function tables that stages find in
 * it.
 *
 * Each stage that computes on a GPU declares one table in its own folder: a
 * struct of function pointers that begins with `uint32_t version`, the name of
 * the constant of that type that the plug-in exports, and the current version.
 * A change to the table, to a struct that its functions take, or to what they
 * mean raises the version; a program and a plug-in of different versions
 * refuse each other.
 *
 * In all tables pointers are host memory unless said otherwise, and matrices
 * are row-major and contiguous.  Functions that return int return 0, or fill
 * *e:
 *
 *     E_DEVICE  the device or a CUDA library failed
 *     E_TEMP    out of GPU or host memory
 *     E_DATA    as the CPU function for the same computation
 *     E_CONFIG  not supported on the GPU; the CPU may support it */
#ifndef FORGE_PLUGIN_H
#define FORGE_PLUGIN_H

#include "common/base.h"

/* One device and one CUDA stream, for one thread at a time; private to the
 * plug-in. */
struct cuda_context;

/* A stage's table as its program wants it. */
struct plugin_table {
    const char *symbol;    /* name of the exported constant */
    uint32_t version;      /* the version that the program was built with */
    const void *functions; /* out: the constant; NULL: not loaded */
};

/* Find t's constant in the plug-in at path, which stays loaded.  path NULL:
 * forge-cuda.so beside the running program, or in ../lib/4bit-forge from
 * there.  E_DEVICE: there is no plug-in, it cannot be opened, or it lacks the
 * table or has another version of it. */
MUST_CHECK int plugin_load(struct plugin_table *t, const char *path,
                           struct err *e);
/* Whether the plug-in's file and a CUDA driver are there: a cheap test, which
 * does not say that a device works. */
bool plugin_is_likely(void);

#endif
