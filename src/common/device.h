/* device.h - where a stage computes: --device auto|cpu|cuda. */
#ifndef FORGE_DEVICE_H
#define FORGE_DEVICE_H

#include "common/opt.h"

enum device { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };

/* Row for a tool's option table; dst: int *, an enum device. */
#define DEVICE_OPTION(dst)                                                     \
    {                                                                          \
        OPT_CHOICE, 0, "device", "auto|cpu|cuda",                              \
            "where to compute: auto takes what is there [auto]", dst, 0, 0,    \
            true                                                               \
    }

/* Whether this build has something for the device.  E_DEVICE: it has not. */
MUST_CHECK int device_check(int device, struct err *e);

#endif
