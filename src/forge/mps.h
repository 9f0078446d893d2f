/* mps.h - NVIDIA's Multi-Process Service for the processes of a run.  Without it those
 * that share a GPU take turns on all of it. */
#ifndef FORGE_MPS_H
#define FORGE_MPS_H

#include <sys/types.h>

#include "common/io/tmpdir.h"

/* Zero-initialise. */
struct mps {
    pid_t control;     /* nvidia-cuda-mps-control; 0: not started */
    struct tmpdir dir; /* of its sockets and logs */
};

/* Start the service, of which processes that are started from now on are clients, if
 * its program is there, FORGE_MPS is not 0, and there is no service of the user's.
 * Else nothing. */
void mps_start(struct mps *m);
/* End it, when its clients have ended.  If our process dies, the service gets a signal
 * to. */
void mps_end(struct mps *m);

#endif
