/* gpu.h - asks forge-device, beside other work, which GPU a run computes on: our
 * process opens none, since that takes memory while the run lasts. */
#ifndef FORGE_GPU_H
#define FORGE_GPU_H

#include <stdio.h>

#include "device/device.h"
#include "forge/mps.h"

/* Zero-initialise; gpu_release() when done. */
struct gpu {
    FILE *asked;               /* NULL: not asked, or answered */
    char command[128];         /* that asks */
    struct device_facts facts; /* all 0: the CPU */
    struct mps mps;            /* of the run's processes */
};

/* Start forge-device where a GPU is asked for or likely, and before it, if several
 * processes are to share the GPU, the service by which they do.  memory:
 * --gpu-memory, 0: not given.  E_USAGE: no word of --device; E_TEMP. */
MUST_CHECK int gpu_ask(struct gpu *g, const char *device, uint64_t memory,
                       bool shared, struct err *e);
/* Wait for the answer and set g->facts.  If the GPU cannot be opened by the service,
 * the run does without.  E_DEVICE, E_TEMP: --device cuda was given
 * and it cannot be opened; E_BUG: forge-device did not answer. */
MUST_CHECK int gpu_learn(struct gpu *g, struct err *e);
void gpu_release(struct gpu *g);

#endif
