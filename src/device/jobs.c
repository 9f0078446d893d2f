/* jobs.c - see jobs.h. */
#include "device/jobs.h"

#include <stdlib.h>
#include <string.h>

static int run_batch(const struct jobs *j, const int *job, int n, bool *done,
                     struct err *e)
{
    int rc = j->run(j->ctx, job, n, e), half = n / 2;

    for (int i = 0; i < n && rc >= 0; i++)
        done[job[i]] = true;
    if (rc >= 0 || rc == E_DEVICE)
        return rc;
    if (n == 1 || rc == E_CONFIG)
        return 0;
    rc = run_batch(j, job, half, done, e);
    return rc < 0 ? rc : run_batch(j, job + half, n - half, done, e);
}

int jobs_run(const struct jobs *j, int n, bool *done, struct err *e)
{
    int *list = mem_alloc((size_t)n * sizeof(*list), "jobs", e), rc = 0;
    bool *seen = list ? mem_zero((size_t)n, sizeof(*seen), "jobs", e) : NULL;

    if (!seen) {
        free(list);
        return e->code;
    }
    memset(done, 0, (size_t)n * sizeof(*done));
    for (int first = 0; first < n && rc >= 0; first++) {
        int count = 0;

        for (int i = first; i < n; i++)
            if (!seen[i] && (i == first || j->alike(j->ctx, first, i))) {
                seen[i] = true;
                list[count++] = i;
            }
        if (count)
            rc = run_batch(j, list, count, done, e);
    }
    free(list);
    free(seen);
    return rc;
}
