/* progress.h - what a running tool says of itself on stderr.
 *
 * auto: a line on a terminal, nothing else; json: an object a line, at most 10
 * a second; never: nothing.  Unless --quiet, a final line always. */
#ifndef FORGE_PROGRESS_H
#define FORGE_PROGRESS_H

#include "common/base.h"

enum progress_mode {
    PROGRESS_AUTO,
    PROGRESS_ALWAYS,
    PROGRESS_NEVER,
    PROGRESS_JSON
};
#define PROGRESS_WORDS "auto|always|never|json"

struct progress {
    enum progress_mode mode;
    const char *unit;     /* "tensors", "sequences" */
    uint64_t done, total; /* of units; total 0 when unknown */
    uint64_t layers, n_layers;
    uint64_t bytes;        /* read or written, for the rate */
    double loss;           /* of the last module; negative: none */
    const char *item;      /* name of the last one */
    double started, shown; /* seconds, monotonic */
    bool drawn;
};

/* Columns of the terminal at standard error; 80 when it does not say. */
int progress_columns(void);
void progress_start(struct progress *p, int mode, const char *unit,
                    uint64_t total);
/* Call after each unit; draws when it is time to. */
void progress_step(struct progress *p, const char *item, uint64_t bytes);
/* Clear the line and print the summary: "forge-solve: 28 tensors, 12.3 MB,
 * 1.2 s, 10 MB/s" plus, after "; ", extra (NULL: none). */
void progress_finish(struct progress *p, const char *extra);

#endif
