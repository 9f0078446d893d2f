/* meter.h - runs a command and measures the time and peak memory of its process
 * tree. */
#ifndef FORGE_METER_H
#define FORGE_METER_H

#include "common/base.h"

struct meter {
    int status;       /* as in a shell: exit status, or 128 + signal */
    int killed;       /* the signal that ended the command; 0: none */
    int signalled;    /* the signal that we got and passed on; 0: none */
    double seconds;   /* from fork to the end of the command */
    uint64_t peak;    /* bytes of memory, see meter_run() */
    uint64_t samples; /* number of samples of the process tree */
    /* private: the largest sum of resident sizes, and when Pss was last added
     * up */
    uint64_t bound;
    double looked, took; /* took: seconds that adding up took */
};

/* Callbacks while the command runs. */
struct meter_watch {
    int fd; /* watched for input */
    /* Called when fd can be read; false: end of file. */
    bool (*ready)(void *ctx, int fd);
    void (*tick)(void *ctx); /* called at every sample */
    void *ctx;
    int out, err; /* standard output and error of the command; closed by us */
};

/* Run argv (found on PATH) with our standard streams, or those of w, and wait
 * for it.  TERM, INT and HUP are passed on to it, with w as TERM: make waits for
 * its children after the others.  It gets TERM when we die.
 *
 * peak: the maximum over samples, every interval_ms, of the sum over the
 * command and its descendants of their proportional set sizes (Pss of proc(5):
 * memory shared by n processes counts once).  Peaks between two samples are
 * missed, and children of threads other than a process's main thread.
 * w: NULL, or fd is read to its end, which comes after the command's if that
 * leaves children behind.
 * E_NOINPUT: no such command, or it cannot be run; E_TEMP: no process can be started. */
MUST_CHECK int meter_run(char **argv, int64_t interval_ms,
                         const struct meter_watch *w, struct meter *m,
                         struct err *e);

#endif
