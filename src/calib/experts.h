/* routed.h - the experts of a layer in a calibration run. */
#ifndef FORGE_ROUTED_H
#define FORGE_ROUTED_H

#include "calib/loop.h"
#include "model/moe.h"

struct routed {
    struct loop *l;
    int64_t layer;
    int64_t experts; /* 0: the layer has none, and nothing is to be done */
    struct mixture mix;
    struct mixture original; /* of the loop's second stream, if it has one */
    double *stats;           /* [experts, EXPERT_STATS] */
    uint64_t *mark; /* [experts, 2]: behind its input, behind its middle */
    uint64_t part;  /* of the activation that is being put out */
    void *buffer;   /* of put_beside() */
    struct linear old[2]; /* linears whose codes were used; they may go */
    int n_old;
};

/* Zero *r for a layer without experts. */
MUST_CHECK int routed_open(struct routed *r, struct loop *l, int64_t layer,
                           struct err *e);
void routed_close(struct routed *r); /* zeroed is allowed */
/* Does a linear of an expert lack codes? */
bool routed_wanted(const struct routed *r);
/* The batch, which is at POINT_MLP_IN; original: of the second stream. */
MUST_CHECK int routed_take(struct routed *r, const struct span *b,
                           const struct state *s, bool original, struct err *e);
/* Run the experts, unless the calibration skips them; put out their
 * activations (emit), the hit map (emit, or it alone is wanted), and add what
 * they say to the hidden states (add). */
MUST_CHECK int routed_run(struct routed *r, bool emit, bool add, struct err *e);

#endif
