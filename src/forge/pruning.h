/* pruning.h - forge prune, by itself and in front of quantizing. */
#ifndef FORGE_PRUNING_H
#define FORGE_PRUNING_H

#include "common/base.h"

struct prune_request {
    int64_t keep; /* experts of each layer; 0: nothing is pruned */
    int by;       /* enum prune_by */
    int mode;     /* enum expert_mode */
    int64_t sequences, seqlen, threads;
    const char *hitmap, *text; /* statistics, or what to gather them on */
    uint64_t shard_size;
    int quiet;
};

/* Before any work: the model is a mixture that can keep as many, its sidecars
 * can be copied, hitmap or text is there. */
MUST_CHECK int prune_check(const struct prune_request *p, const char *model,
                           struct err *e);
/* Make the directory out.  As pipes_run(). */
MUST_CHECK int prune_make(const struct prune_request *p, const char *model,
                          const char *out, struct err *e);

#endif
