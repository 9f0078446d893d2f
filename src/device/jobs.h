/* jobs.h - runs jobs on a device in batches, and finds those that fail.
 *
 * A batch is a set of jobs of equal shape that the device does in one call.
 * It fails as a whole; it is then halved until the failing job is alone, so
 * that the other jobs succeed. */
#ifndef FORGE_JOBS_H
#define FORGE_JOBS_H

#include "common/base.h"

/* The jobs 0..n-1 of a caller. */
struct jobs {
    /* whether a and b can be in one batch; an equivalence relation */
    bool (*alike)(const void *ctx, int a, int b);
    /* Do all of job[0..n), which are alike, or none.  0, or negative:
     * E_CONFIG: the device does not support such jobs, so none of the batch is
     * tried again; E_DEVICE: the device failed, which ends jobs_run(); others:
     * the batch is halved. */
    int (*run)(void *ctx, const int *job, int n, struct err *e);
    void *ctx;
};

/* Run jobs 0..n-1.  done[n], out: false where the device could not do the job.
 * E_DEVICE; E_TEMP: no host memory for the list. */
MUST_CHECK int jobs_run(const struct jobs *j, int n, bool *done, struct err *e);

#endif
