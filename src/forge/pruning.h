/* pruning.h - forge prune, as a command and as the first part of forge quantize
 * --keep. */
#ifndef FORGE_PRUNING_H
#define FORGE_PRUNING_H

#include "common/base.h"

struct prune_request {
    int64_t keep; /* experts to keep per layer; 0: do not prune */
    int by;       /* enum prune_by */
    int mode;     /* enum expert_mode */
    int64_t sequences, seqlen, threads;
    const char *hitmap, *text; /* hit maps; or the text to make them on */
    const char *device,
        *gpu; /* --device and --expect-device; NULL: auto, any */
    uint64_t shard_size;
    int quiet, progress;
    bool captured; /* no tool prints anything: see pipes.h */
};

/* Check, before any work, that the model has experts and can keep so many, that
 * its sidecars can be copied, and that hitmap or text exists.  E_USAGE,
 * E_CONFIG, E_NOINPUT ... */
MUST_CHECK int prune_check(const struct prune_request *p, const char *model,
                           struct err *e);
/* Write the pruned model to the new directory `out`.  Returns as
 * pipes_run(). */
MUST_CHECK int prune_make(const struct prune_request *p, const char *model,
                          const char *out, struct err *e);

#endif
