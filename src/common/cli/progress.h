/* progress.h - progress of a running tool on stderr.
 *
 * auto: a line that is redrawn, on a terminal only; always: that line on
 * anything; json: one object per line, at most 10 per second; never: nothing.
 * A final summary line in all modes, unless --quiet. */
#ifndef FORGE_PROGRESS_H
#define FORGE_PROGRESS_H

#include "common/base.h"

/* Values of --progress. */
enum progress_mode {
    PROGRESS_AUTO,
    PROGRESS_ALWAYS,
    PROGRESS_NEVER,
    PROGRESS_JSON
};
#define PROGRESS_WORDS "auto|always|never|json"

/* Fields below `unit` are the tool's to update between calls. */
struct progress {
    enum progress_mode mode;
    const char *unit;          /* "tensors", "sequences" */
    uint64_t done, total;      /* number of units; total 0: unknown */
    uint64_t layers, n_layers; /* decoder layers begun, and all; 0: not shown */
    uint64_t bytes;            /* read or written so far, for the rate */
    double loss;               /* of the last module; negative: not shown */
    const char *item; /* name of the last unit, valid during progress_step() */
    double started, shown; /* seconds_now() at the start, at the last drawing */
    bool drawn;            /* an unfinished line is on the terminal */
};

/* Columns of the terminal on stderr; 80 if unknown. */
int progress_columns(void);
/* mode: an enum progress_mode as OPT_CHOICE stores it.  unit: plural, kept as
 * a pointer. */
void progress_start(struct progress *p, int mode, const char *unit,
                    uint64_t total);
/* Call after each unit: adds 1 to done and `bytes` to bytes, draws at most 10
 * times a second. */
void progress_step(struct progress *p, const char *item, uint64_t bytes);
/* Clear the line and print the summary, "forge-solve: 28 tensors, 12.3 MiB, 1.2
 * s, 10.3 MiB/s", followed by "; EXTRA" if extra is not NULL. */
void progress_finish(struct progress *p, const char *extra);

#endif
