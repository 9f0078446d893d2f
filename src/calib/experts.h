/* experts.h - the routed experts of a layer in a calibration run: their tokens
 * are gathered from all batches, then each expert runs once over all its tokens
 * (model/moe.h). */
#ifndef FORGE_CALIB_EXPERTS_H
#define FORGE_CALIB_EXPERTS_H

#include "calib/run.h"
#include "model/moe.h"

struct calib_experts {
    struct run *run;
    int64_t layer;
    int64_t experts; /* 0: the layer has none, and all functions do nothing */
    struct mixture mix;
    struct mixture reference; /* of the reference stream, if there is one */
    double *stats;            /* [experts, EXPERT_STATS]: the hit map */
    uint64_t *mark; /* [experts, 2]: number of the mark (sync.h) behind the
                          input of gate and up; behind that of down */
    uint64_t part;  /* sequence number of the activation's last frame */
    int64_t row;    /* rows of the activation in the frames before */
    void *room;     /* companion rows, where layers run */
    size_t room_bytes;
    float *share; /* [tokens, top_k], where layers run: see open_shares() */
    void *host;   /* host copies of rows to write, if layers run on a device */
    struct linear old[2]; /* linears whose codes were used last */
    int n_old;
    /* Called once, when the solver has its first inputs; or NULL. */
    int (*meanwhile)(void *arg, struct err *e);
    void *arg;
};

/* A layer without experts: *ex is zero.  run must outlive *ex.  add_out: as
 * calib_experts_run() will be told.  E_TEMP; errors of loading the router. */
MUST_CHECK int calib_experts_open(struct calib_experts *ex, struct run *run,
                                  int64_t layer, bool add_out, struct err *e);
void calib_experts_close(struct calib_experts *ex); /* zeroed is allowed */
/* Whether a linear of an expert has no codes yet. */
bool calib_experts_wanted(const struct calib_experts *ex);
/* Route and gather the tokens of batch b, whose state s is at POINT_MLP_IN.
 * reference: the batch is of the reference stream. */
MUST_CHECK int calib_experts_take(struct calib_experts *ex,
                                  const struct span *b, const struct state *s,
                                  bool reference, struct err *e);
/* Run all experts over the gathered tokens (with calib.skip_experts: only count
 * their tokens).  emit: write the hit map, and the activations of experts (with
 * feedback: of those without codes, waiting for the codes); CALIB_HITMAP writes
 * the hit map in any case.  add: add the experts' outputs to the hidden states
 * in the stores. */
MUST_CHECK int calib_experts_run(struct calib_experts *ex, bool emit, bool add,
                                 struct err *e);

#endif
