/* expert_rows.h - the rows of experts' tokens, inside a pass over them: see
 * moe.h. */
#ifndef FORGE_EXPERT_ROWS_H
#define FORGE_EXPERT_ROWS_H

#include "model/internal.h"
#include "model/moe.h"

enum { EXPERT_PART = 2048 }; /* rows of an expert that are worked on together */

struct pass {
    const struct experts_pass *p;
    struct model *m;
    int64_t n_experts, h, width;
    int64_t *first; /* [experts + 1] of the expert's tokens in slot[] */
    int64_t *slot;  /* [n * top_k] indices of routing, sorted by expert */
    struct buffer in, mid,
        out; /* a part: [EXPERT_PART, H], [EXPERT_PART, width], [EXPERT_PART, H] */
    struct buffer in_reference, mid_reference; /* the same with p->reference */
    struct region mid_rows; /* [tokens of an expert, width], with hooks: */
    void *mids;             /* where it lies */
    /* on a device: slot, the routing's weights, squares of the rows of slot */
    int64_t *device_slot;
    float *device_weight;
    double *squares;
    double stats[EXPERT_STATS];
    double norm[EXPERT_PART]; /* of outputs, weighted */
};

struct part {
    struct pass *x;
    int64_t first, n; /* of slot[] */
    const void *from; /* rows of all tokens, */
    void *to;         /* those that are gathered */
};

/* Fill x->first and x->slot. */
MUST_CHECK int pass_sort_tokens(struct pass *x, struct err *e);
int64_t pass_tokens_of(const struct pass *x, int64_t expert);
int64_t pass_most_tokens(const struct pass *x);
/* Sums of the routing over one expert's tokens, to x->stats. */
void pass_count_tokens(struct pass *x, int64_t expert);
/* The part's rows to x->in, those of the reference to x->in_reference. */
MUST_CHECK int part_gather(struct part *j, struct err *e);
/* sum += weight * x->out, and the norms of that to x->stats, or squares on a
 * device. */
MUST_CHECK int part_scatter(struct part *j, struct err *e);
/* On a device: what gather and scatter read there; the norms of all experts to the
 * pass's statistics, at the end; release it, on the host, too. */
MUST_CHECK int pass_place_slots(struct pass *x, struct err *e);
MUST_CHECK int pass_add_norms(struct pass *x, struct err *e);
void pass_release_slots(struct pass *x);

#endif
