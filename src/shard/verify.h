/* verify.h - reads a written checkpoint back and checks that it is complete and
 * sound. */
#ifndef FORGE_VERIFY_H
#define FORGE_VERIFY_H

#include "checkpoint/expertmap.h"
#include "layout/runfacts.h"
#include "shard/resemble.h"

struct verify {
    const char *dir;
    const char *source; /* the original model; NULL: not compared */
    const struct run_facts
        *facts;     /* expected layout and group; NULL: those of its
                                      config.json */
    int64_t sample; /* linears to compare (resemble.h); 0: none */
    const struct expert_map *map; /* experts pruned from the source; or NULL */
    enum expert_mode mode;
};

struct verify_report {
    uint64_t tensors, bytes, packed, compared;
    struct resemblance
        worst; /* the worst of each statistic, of those compared */
};

/* E_DATA: a file breaks a rule of its format, the index contradicts the files,
 * a tensor is missing, superfluous or not finite, or a linear does not resemble
 * its source; the message says which.  E_NOINPUT, E_IO, E_TEMP. */
MUST_CHECK int verify_checkpoint(const struct verify *v,
                                 struct verify_report *r, struct err *e);

#endif
