/* follow.h - what the steps of a quantization report, kept and shown. */
#ifndef FORGE_FOLLOW_H
#define FORGE_FOLLOW_H

#include "forge/pipes.h"
#include "forge/request.h"
#include "work/records.h"

enum follow_show { SHOW_NONE, SHOW_LINE, SHOW_LAYERS, SHOW_JSON };

struct follow {
    const struct request *r;
    enum follow_show show;
    double started, drawn, estimate; /* seconds; estimate 0: none */
    struct records records;          /* of the modules that were solved now */
    int64_t before, done; /* modules: found, and all that there are */
    int64_t *layer_left;  /* [layers]: modules that are not solved yet */
    int64_t layers_done;
    char doing[64];
    double loss, loss_rtn; /* sums */
    bool on_screen;
    int failed; /* the first step that failed says E_*; 0: none */
    char reason[REASON_MAX];
    char *text; /* what has come without its end yet */
    size_t len;
};

/* What earlier calls have done is read from the work directory. */
MUST_CHECK int follow_begin(struct follow *f, const struct request *r,
                            double estimate, struct err *e);
/* Take in what fd has; false: it has ended. */
bool follow_read(struct follow *f, int fd);
/* A moment later: draw again. */
void follow_draw(struct follow *f);
/* Nothing stays on the terminal's line. */
void follow_clear(struct follow *f);
/* The last event: the status, and with 0 what was made. */
void follow_end(struct follow *f, int status, uint64_t bytes_out);
void follow_release(struct follow *f);

#endif
