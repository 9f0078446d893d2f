/* expert_weights.h - reads the weights of experts, one or ahead; the inside of
 * experts_run() (moe.h). */
#ifndef FORGE_EXPERT_WEIGHTS_H
#define FORGE_EXPERT_WEIGHTS_H

#include "model/expert_rows.h"
#include "model/read_ahead.h"

enum { GATE, UP, DOWN, THREE };

/* An expert's linears; one that is not loaded has w NULL. */
struct expert {
    struct loaded of[THREE];
};

/* Load linears from..to-1 of an expert, with codes (NULL: the checkpoint's).  Errors of
 * loading. */
MUST_CHECK int load_expert(struct pass *x, const struct quantized *codes,
                           int64_t expert, int from, int to, struct expert *w,
                           struct err *e);
void release_expert(struct expert *w);

/* The experts of the pass that have tokens, in turn, read ahead. */
struct expert_readers {
    struct read_ahead ahead;
    struct pass *x;
    const struct quantized *codes;
    struct expert item[READERS];
};

void expert_readers_start(struct expert_readers *s, struct pass *x,
                          const struct quantized *codes);
/* *w: the expert whose turn it is, where layers run; with no tokens nothing is
 * loaded.  readers_go_on() it.  Errors of loading. */
MUST_CHECK int expert_readers_next(struct expert_readers *s, int64_t turn,
                                   struct expert **w, struct err *e);

/* All experts of a layer in memory. */
struct experts_kept {
    int64_t n;
    struct expert expert[];
};

/* Whether all experts can run in one call: on a device, bf16 weights that are kept there,
 * sums alone wanted; and that call.  E_TEMP. */
bool pass_runs_together(const struct pass *x);
MUST_CHECK int pass_run_together(struct pass *x, struct err *e);
#endif
