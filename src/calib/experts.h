/* experts.h - the experts of a layer in a calibration run. */
#ifndef FORGE_CALIB_EXPERTS_H
#define FORGE_CALIB_EXPERTS_H

#include "calib/run.h"
#include "model/moe.h"

struct calib_experts {
    struct run *run;
    int64_t layer;
    int64_t experts; /* 0: the layer has none, and nothing is to be done */
    struct mixture mix;
    struct mixture reference; /* of the reference stream, if there is one */
    double *stats;            /* [experts, EXPERT_STATS] */
    uint64_t *mark; /* [experts, 2]: sent behind its in, behind its mid */
    uint64_t part;  /* number of the frame of the activation at hand */
    void *room;     /* where layers run: rows that go out */
    size_t room_bytes;
    float *share; /* [tokens, top_k], where layers run: open_shares() */
    void *host;   /* copies of the rows that go out, where layers run on
                             a device */
    struct linear
        old[2]; /* linears whose codes were used, and may be dropped */
    int n_old;
};

/* *ex is zero for a layer without experts. */
MUST_CHECK int calib_experts_open(struct calib_experts *ex, struct run *run,
                                  int64_t layer, struct err *e);
void calib_experts_close(struct calib_experts *ex); /* zeroed is allowed */
/* Does a linear of an expert lack codes? */
bool calib_experts_wanted(const struct calib_experts *ex);
/* Gather the tokens of a batch, which is at POINT_MLP_IN; reference: a batch of
 * the reference stream. */
MUST_CHECK int calib_experts_take(struct calib_experts *ex,
                                  const struct span *b, const struct state *s,
                                  bool reference, struct err *e);
/* Run the experts, unless the calibration skips them.  emit: put out their
 * activations and the hit map; add: add the experts' outputs to the hidden
 * states.  A calibration for hit maps puts the map out without emit. */
MUST_CHECK int calib_experts_run(struct calib_experts *ex, bool emit, bool add,
                                 struct err *e);

#endif
