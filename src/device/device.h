/* device.h - where a stage computes: --device auto|cpu|cuda[:n].
 *
 * A process has one device, as it has one number of threads: a tool opens it,
 * and the stages' backends ask for it.  What the GPU cannot do is done on the
 * CPU, with a note; under --device cuda it is an error instead. */
#ifndef FORGE_DEVICE_H
#define FORGE_DEVICE_H

#include "common/cli/opt.h"
#include "device/plugin.h"

enum device { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };

/* What the options say; NULL: not given. */
struct device_choice {
    const char *name;
    uint64_t memory; /* 0: not given */
};

/* The plug-in's own table: the devices that it can open. */
#define DEVICE_TABLE "forge_device_table"
enum { DEVICE_TABLE_VERSION = 1 };
struct device_table {
    uint32_t version;
    /* Number of devices that can be used; 0 when there is no driver. */
    int (*count)(void);
    /* memory: bytes of buffers that may be held, 0: what there is (what the
     * libraries take for themselves is not counted).  The context lasts as long
     * as the process. */
    int (*open)(struct cuda_context **c, int device, uint64_t memory,
                struct err *e);
};

/* Rows for a tool's option table; dst: struct device_choice *. */
#define GPU_OPTIONS(dst)                                                       \
    { OPT_STR,                                                                 \
      0,                                                                       \
      "device",                                                                \
      "auto|cpu|cuda[:N]",                                                     \
      "where to compute: auto takes what is there [auto]",                     \
      &(dst)->name,                                                            \
      0,                                                                       \
      0,                                                                       \
      true },                                                                  \
    {                                                                          \
        OPT_SIZE, 0, "gpu-memory", "SIZE",                                     \
            "GPU memory to hold at most, e.g. 8G [all]", &(dst)->memory, 0, 0, \
            true                                                               \
    }
/* Of a tool that knows no GPU; dst: int *, an enum device. */
#define DEVICE_OPTION(dst)                                                     \
    {                                                                          \
        OPT_CHOICE, 0, "device", "auto|cpu|cuda",                              \
            "where to compute: auto takes what is there [auto]", dst, 0, 0,    \
            true                                                               \
    }

/* Whether this tool has something for the device.  E_DEVICE: it has not. */
MUST_CHECK int device_check(int device, struct err *e);

/* Open what was chosen, and load the stage's table.  E_USAGE: no such word;
 * E_DEVICE: it was demanded and is not there, or this one does not work. */
MUST_CHECK int device_open(const struct device_choice *c,
                           struct plugin_table *stage, struct err *e);
/* The open GPU, or NULL: the CPU.  With it the stage's table is there. */
struct cuda_context *device_gpu(void);
/* What a backend of the GPU returned: true when the CPU is to do it instead,
 * because the GPU cannot (E_CONFIG) or has no room (E_TEMP); said once.  Under
 * --device cuda false, and then *rc is E_DEVICE when the GPU cannot. */
bool device_declined(int *rc, struct err *e);

#endif
