/* meter.h - run a command and measure what its whole process tree takes. */
#ifndef FORGE_METER_H
#define FORGE_METER_H

#include "common/base.h"

struct meter {
    int status;       /* as the shell says it: exit code, or 128 + signal */
    int killed;       /* the signal that ended it, or 0 */
    int signalled;    /* the one that came to us and was passed on, or 0 */
    double seconds;   /* from fork to the end of the command */
    uint64_t peak;    /* bytes of memory, see meter_run */
    uint64_t samples; /* how often the tree was looked at */
    /* private: the largest sum of resident sizes, when Pss was last added up */
    uint64_t bound;
    double looked;
};

/* What a caller does meanwhile. */
struct meter_watch {
    int fd; /* to read from */
    /* Called when fd can be read; false: it has ended. */
    bool (*ready)(void *ctx, int fd);
    void (*tick)(void *ctx); /* at every look */
    void *ctx;
    int out, err; /* the command's standard output and error; closed */
};

/* Run argv (found on PATH) with our standard streams and wait for it; TERM,
 * INT and HUP are passed on to it, and it gets TERM when we die.
 *
 * peak: the largest sum, over the command and its descendants at one moment,
 * of their proportional set sizes (Pss of proc(5): memory shared by n of them
 * counts once), looked at every interval_ms; a moment between two looks can be
 * higher.  Children of threads other than a process's first are not seen.
 * w: may be NULL; otherwise fd is read to its end, which is after the command's
 * where it left children behind.
 * E_NOINPUT: no such command; E_TEMP: no process left. */
MUST_CHECK int meter_run(char **argv, int64_t interval_ms,
                         const struct meter_watch *w, struct meter *m,
                         struct err *e);

#endif
