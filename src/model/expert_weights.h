/* expert_weights.h - reads the weights of experts, one or ahead; the inside of
 * experts_run() (moe.h). */
#ifndef FORGE_EXPERT_WEIGHTS_H
#define FORGE_EXPERT_WEIGHTS_H

#include "common/math/threads.h"
#include "model/expert_rows.h"

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

/* So many experts are in memory: one runs, the others are read, each by a thread, since
 * one cannot keep up with all those that multiply. */
enum { READERS = 4, THREADS_OF_A_READER = 2 };

struct reader {
    struct pass *x;
    const struct quantized *codes;
    int64_t turn; /* from x->turns on: nothing is read */
    struct expert w;
    int rc;
    struct err err;
    struct threads_task task;
};

struct readers {
    struct reader r[READERS];
    int n;
};

/* Read the experts of the pass, in turn. */
void readers_start(struct readers *s, struct pass *x,
                   const struct quantized *codes);
/* *out: the reader of the expert whose turn it is, the next one, which has read it.
 * Errors of reading. */
MUST_CHECK int readers_next(struct readers *s, int64_t turn,
                            struct reader **out, struct err *e);
/* The expert is not needed any more: read another one. */
void readers_go_on(struct readers *s, struct reader *r);
void readers_end(struct readers *s);

#endif
