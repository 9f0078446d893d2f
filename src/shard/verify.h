/* verify.h - read a checkpoint back and see that it is whole and right. */
#ifndef FORGE_VERIFY_H
#define FORGE_VERIFY_H

#include "checkpoint/expertmap.h"
#include "layout/runfacts.h"
#include "shard/resemble.h"

struct verify {
    const char *dir;
    const char *source;            /* original model; NULL: none to compare */
    const struct run_facts *facts; /* what it must be; NULL: as it says */
    int64_t sample;                /* linears to compare; 0: none */
    const struct expert_map *map;  /* what the source was pruned by; or NULL */
    enum expert_mode mode;
};

struct verify_report {
    uint64_t tensors, bytes, packed, compared;
    struct resemblance worst; /* of those compared, each figure by itself */
};

/* E_DATA: a file breaks a rule of its format, the index and the files
 * disagree, a tensor is missing, extra or not finite, or a linear does not
 * resemble its source; the message says which. */
MUST_CHECK int verify_checkpoint(const struct verify *v,
                                 struct verify_report *r, struct err *e);

#endif
