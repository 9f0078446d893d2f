/* follow.h - reads what the steps of a quantization report while they run,
 * keeps it, and shows the progress. */
#ifndef FORGE_FOLLOW_H
#define FORGE_FOLLOW_H

#include "forge/pipes.h"
#include "forge/request.h"
#include "work/records.h"

enum follow_show { SHOW_NONE, SHOW_LINE, SHOW_LAYERS, SHOW_JSON };

struct follow {
    const struct request *r;
    enum follow_show show;
    double started, drawn;  /* times, of seconds_now() */
    double estimate;        /* seconds of the whole run; 0: none */
    struct records records; /* of all modules solved */
    int64_t before, done;   /* modules solved before this call; and in all */
    int64_t *layer_left;    /* [layers]: modules that are not solved yet */
    int64_t layers_done;
    char doing[64];        /* the step begun last, "NAME LAYER" */
    double loss, loss_rtn; /* sums over modules */
    bool on_screen;        /* a line is drawn on the terminal */
    int failed;            /* E_* of the step that failed; 0: none */
    char reason[REASON_MAX];
    char *text; /* [len]: an incomplete line */
    size_t len;
};

/* Read from the work directory what earlier calls have done.  follow_release()
 * *f, also after an error. */
MUST_CHECK int follow_begin(struct follow *f, const struct request *r,
                            double estimate, struct err *e);
/* Read lines from fd, without waiting; false: end of file. */
bool follow_read(struct follow *f, int fd);
/* Draw the progress again, if the last time is long enough ago. */
void follow_draw(struct follow *f);
/* Erase the terminal's line. */
void follow_clear(struct follow *f);
/* Print the last JSON event: the exit status; what was made, with bytes_out, if that is
 * 0, else why not. */
void follow_end(const struct follow *f, int status, const char *why,
                uint64_t bytes_out);
/* The same of a run that failed before follow_begin(). */
void follow_never(const struct request *r, int status, const char *why);
void follow_release(struct follow *f);

#endif
