/* device.h - the process's GPU: --device auto|cpu|cuda[:N].  auto:%N, cuda:%N: as
 * auto and cuda, but of n GPUs number N modulo n (steps of a run in parts).
 *
 * A process uses at most one device.  A tool opens it with device_open(), and
 * the backends of its stage get it by device_gpu().  Work that the GPU cannot
 * do (shapes it does not support, no memory) is done on the CPU and reported
 * by info(); under --device cuda it is an error. */
#ifndef FORGE_DEVICE_H
#define FORGE_DEVICE_H

#include "common/cli/opt.h"
#include "device/plugin.h"

/* auto: the GPU if a plug-in, a driver and a device are there, else the CPU. */
enum device { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };

/* Values of the options GPU_OPTIONS. */
struct device_choice {
    const char *name; /* --device; NULL: not given, auto */
    uint64_t memory;  /* --gpu-memory, bytes; 0: not given */
    const char *want; /* --expect-device, a stamp; NULL: any */
    bool factors;     /* the tool uses cuSOLVER, whose version counts, too */
};

/* What the bytes that are computed on a device depend on, and its memory. */
enum { DEVICE_STAMP = 200 };
struct device_facts {
    char stamp[DEVICE_STAMP]; /* "NVIDIA H200, cuBLAS 12.9.1, cuSOLVER
                               * 11.7.5"; without factors the last is left
                               * out */
    uint64_t memory, free;    /* bytes of the device; free of them */
    uint64_t room; /* that may be allocated now: up to --gpu-memory, else half
                    * of what is free, since other programs use it, too */
};

/* The plug-in's table of its own (see plugin.h): finding and opening
 * devices. */
#define DEVICE_TABLE "forge_device_table"
enum { DEVICE_TABLE_VERSION = 5, DEVICE_HANDLE = 64 };
struct device_table {
    uint32_t version;
    /* Number of usable devices; 0 without a driver. */
    int (*count)(void);
    /* memory: limit of the bytes allocated for buffers, 0: what is free; what
     * CUDA's libraries allocate is not counted.  The context lives until the
     * process ends. */
    int (*open)(struct cuda_context **c, int device, uint64_t memory,
                struct err *e);

    /* Optional, before open() and in any thread: start the driver and
     * initialise the device, which takes most of open()'s time.  Errors are
     * reported by open(). */
    void (*begin)(int device);
    /* Optional: load the CUDA libraries for matrix products, and with
     * `factors` those for Cholesky factors, before they are first used. */
    int (*prepare)(struct cuda_context *c, bool factors, struct err *e);

    /* A zeroed block of n bytes of device memory that another process can map;
     * it never moves.  Freed by drop(). */
    int (*block)(struct cuda_context *c, void **p, size_t n, struct err *e);
    void (*drop)(struct cuda_context *c, void *p); /* NULL is allowed */
    /* The handle by which another process maps the block. */
    int (*handle)(struct cuda_context *c, const void *block,
                  uint8_t handle[DEVICE_HANDLE], struct err *e);
    /* *p: a block of another process, mapped until this process ends. */
    int (*map)(struct cuda_context *c, const uint8_t handle[DEVICE_HANDLE],
               const void **p, struct err *e);
    /* Copy n bytes of the context's memory, or of a mapped block, to the host; from
     * any thread. */
    int (*fetch)(struct cuda_context *c, void *host, const void *from, size_t n,
                 struct err *e);
    /* Wait until all operations of the context are complete. */
    int (*settle)(struct cuda_context *c, struct err *e);
    int (*facts)(struct cuda_context *c, bool factors, struct device_facts *f,
                 struct err *e);
};

/* Rows of a tool's option table; dst: struct device_choice *. */
#define GPU_OPTIONS(dst)                                                       \
    { OPT_STR,                                                                 \
      0,                                                                       \
      "device",                                                                \
      "auto|cpu|cuda[:N]",                                                     \
      "where to compute; auto: a GPU if there is one [auto]",                  \
      &(dst)->name,                                                            \
      0,                                                                       \
      0,                                                                       \
      true },                                                                  \
    {                                                                          \
        OPT_SIZE, 0, "gpu-memory", "SIZE",                                     \
            "GPU memory to hold at most, e.g. 8G "                             \
            "[all that is free; tools that run a model: half]",                \
            &(dst)->memory, 0, 0, true                                         \
    }
/* The same, and one more, for a tool whose output depends on the device. */
#define DEVICE_OPTIONS(dst)                                                    \
    GPU_OPTIONS(dst),                                                          \
    {                                                                          \
        OPT_STR, 0, "expect-device", "STAMP",                                  \
            "refuse another device than that, which forge-device printed",     \
            &(dst)->want, 0, 0, true                                           \
    }
/* For a tool that has no GPU code; dst: int *, an enum device. */
#define DEVICE_OPTION(dst)                                                     \
    {                                                                          \
        OPT_CHOICE, 0, "device", "auto|cpu|cuda",                              \
            "where to compute; auto: a GPU if there is one [auto]", dst, 0, 0, \
            true                                                               \
    }

/* For a tool that has no GPU code: E_DEVICE if device is DEVICE_CUDA. */
MUST_CHECK int device_check(int device, struct err *e);
/* E_USAGE: no word of --device; NULL is allowed. */
MUST_CHECK int device_name_check(const char *name, struct err *e);

/* Optional, at the start of the tool: initialise the device in a background
 * thread, which device_open() waits for. */
void device_begin(const struct device_choice *c);
/* Optional, after device_open() and before the first read of the input: load
 * the libraries for matrix products, and with `factors` for Cholesky factors,
 * which the first work would otherwise wait for. */
void device_prepare(bool factors);
/* Open the chosen device and load the stage's table (NULL: none) from the
 * plug-in.  0 also when auto finds no GPU or cannot open it (info() says why).
 * E_USAGE: not a device name; E_DEVICE, E_TEMP: --device cuda was given and it
 * cannot be opened; E_CONFIG: it is not the one that is wanted. */
MUST_CHECK int device_open(const struct device_choice *c,
                           struct plugin_table *stage, struct err *e);
/* The open GPU; NULL: compute on the CPU.  Not NULL implies that the stage's
 * table is loaded. */
struct cuda_context *device_gpu(void);
/* The plug-in's own table; to be called only if device_gpu() is not NULL. */
const struct device_table *device_functions(void);
/* To be called with the negative *rc of a GPU function.  True: do it on the
 * CPU, since the GPU does not support it (E_CONFIG) or has no memory (E_TEMP);
 * the first time, info() says so.  False: *rc is the error to return; under
 * --device cuda E_CONFIG becomes E_DEVICE. */
bool device_declined(int *rc, struct err *e);

#endif
