/* jobs.h - which jobs a device does in one call, and which of them fail.
 *
 * Jobs that are alike are a batch.  A batch fails as a whole, so one that fails
 * is halved until the job that fails is alone: the others do not suffer. */
#ifndef FORGE_JOBS_H
#define FORGE_JOBS_H

#include "common/base.h"

/* Jobs are numbers. */
struct jobs {
    bool (*alike)(const void *ctx, int a, int b); /* an equivalence */
    /* Do all of job[0..n), which are alike, or none: 0, or negative.
     * E_CONFIG: the device does no such job; E_DEVICE: it is broken. */
    int (*run)(void *ctx, const int *job, int n, struct err *e);
    void *ctx;
};

/* Do the jobs 0..n-1; done[n], out: which of them are.  E_TEMP: there is no
 * memory for their list; E_DEVICE. */
MUST_CHECK int jobs_run(const struct jobs *j, int n, bool *done, struct err *e);

#endif
