/* expert_rows.h - gathers and scatters the rows of experts' tokens; the inside
 * of experts_run() (moe.h). */
#ifndef FORGE_EXPERT_ROWS_H
#define FORGE_EXPERT_ROWS_H

#include "model/internal.h"
#include "model/moe.h"

/* most rows of an expert that are processed together */
enum { EXPERT_PART = 2048 };

/* State of experts_run(). */
struct pass {
    const struct experts_pass *p;
    struct model *m;
    int64_t n_experts, h, width;
    int64_t turns;  /* experts that run: see pass_expert() */
    int64_t *first; /* [n_experts + 1] index of each expert's first entry in
                     * slot[] */
    int64_t *slot;  /* [n * top_k] indices of the routing's choices, sorted
                     * by expert */
    /* a part's [EXPERT_PART, H], [EXPERT_PART, width], [EXPERT_PART, H] */
    struct buffer in, mid,
        out; /* a part: [EXPERT_PART, H], [EXPERT_PART, width], [EXPERT_PART, H] */
    struct buffer in_reference, mid_reference; /* the same for p->reference */
    struct region mid_rows; /* with hooks: memory of mids on the host */
    void *mids;             /* with hooks: [2, tokens of an expert, width] */
    void *references;       /* with p->far: [2, tokens of an expert, H] */
    /* On a device: copies of slot and of the routing's weights; sums of
     * squares of output rows, by position in slot. */
    int64_t *device_slot;
    float *device_weight;
    float *device_score; /* if inputs are weighed: the routing's scores */
    double *squares;
    double *counts; /* [n_experts, EXPERT_STATS] of experts_count(), if the pass
                     * has statistics */
    double norms;   /* EXPERT_NORMS of the expert, on the host */
    double norm[EXPERT_PART]; /* weight * ||output|| of a part's rows */
};

/* A range of rows of one expert. */
struct part {
    struct pass *x;
    int64_t first, n; /* entries of slot[] */
    const void *from; /* host: rows of all tokens, and the destination of
                       * gather */
    void *to;
};

/* Set x->first and x->slot: a counting sort of the routing's choices by
 * expert. */
MUST_CHECK int pass_sort_tokens(struct pass *x, struct err *e);
/* The expert whose turn it is. */
static inline int64_t pass_expert(const struct pass *x, int64_t turn)
{
    const struct expert_share *of = &x->p->of;

    return of->shares ? of->share + turn * of->shares : turn;
}
/* Number of tokens of an expert; the largest of all experts. */
int64_t pass_tokens_of(const struct pass *x, int64_t expert);
int64_t pass_most_tokens(const struct pass *x);
/* Set x->counts.  E_TEMP. */
MUST_CHECK int pass_count_tokens(struct pass *x, struct err *e);
/* row[n], elements, *= by. */
void multiply_row(enum dtype type, void *row, int64_t n, float by);
/* Copy the part's rows to x->in, and those of the reference to `reference` (NULL: do
 * not); both times their scores if the family weighs inputs. */
MUST_CHECK int part_gather(struct part *j, void *reference, struct err *e);
/* sum[token] += weight * row of x->out; adds the norms of the weighted rows to
 * x->norms (on a device: x->squares). */
MUST_CHECK int part_scatter(struct part *j, struct err *e);
/* On a device: pass_place_slots() copies what gather and scatter read;
 * pass_add_norms(), at the end, adds the norms of all experts to the
 * statistics.  pass_release_slots() frees these and mid_rows. */
MUST_CHECK int pass_place_slots(struct pass *x, struct err *e);
MUST_CHECK int pass_add_norms(struct pass *x, struct err *e);
void pass_release_slots(struct pass *x);

#endif
