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
    uint64_t *mark; /* [experts, 2]: behind its input, behind its middle */
    uint64_t part;  /* of the activation that is being put out */
    void *room;     /* where layers run: rows that go out */
    size_t room_bytes;
    float *share;         /* there, [tokens, top_k]: of open_shares() */
    void *host;           /* copies of what goes out, where layers run apart */
    struct linear old[2]; /* linears whose codes were used; they may go */
    int n_old;
};

/* Zero *r for a layer without experts. */
MUST_CHECK int calib_experts_open(struct calib_experts *ex, struct run *run,
                                  int64_t layer, struct err *e);
void calib_experts_close(struct calib_experts *ex); /* zeroed is allowed */
/* Does a linear of an expert lack codes? */
bool calib_experts_wanted(const struct calib_experts *ex);
/* The batch, which is at POINT_MLP_IN; reference: of the reference stream. */
MUST_CHECK int calib_experts_take(struct calib_experts *ex,
                                  const struct span *b, const struct state *s,
                                  bool reference, struct err *e);
/* Run the experts, unless the calibration skips them; put out their
 * activations (emit), the hit map (emit, or it alone is wanted), and add what
 * they say to the hidden states (add). */
MUST_CHECK int calib_experts_run(struct calib_experts *ex, bool emit, bool add,
                                 struct err *e);

#endif
