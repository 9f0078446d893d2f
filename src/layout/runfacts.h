/* runfacts.h - how a checkpoint was packed: what forge-pack tells forge-shard.
 *
 * It travels as the note frame "run":
 *     {"layout":"awq","bits":4,"group":128,"symmetric":true,
 *      "scale_dtype":"F16"}
 * and in layout int4pack "capability":"avx512" or the like. */
#ifndef FORGE_RUNFACTS_H
#define FORGE_RUNFACTS_H

#include "common/math/dtype.h"
#include "layout/int4pack.h"
#include "layout/layout.h"

#define RUN_NOTE "run" /* name of the frame */

struct run_facts {
    enum layout layout;
    uint64_t group;
    bool symmetric;
    enum dtype scale_dtype;
    enum int4pack_capability capability; /* of LAYOUT_INT4PACK alone */
};

/* *text: one line of JSON, free() it.  E_TEMP. */
MUST_CHECK int run_facts_write(const struct run_facts *r, char **text,
                               struct err *e);
/* E_DATA: not such a note, with `where` in front.  Unknown members are
 * allowed. */
MUST_CHECK int run_facts_read(struct run_facts *r, const char *text, size_t len,
                              const char *where, struct err *e);
bool run_facts_equal(const struct run_facts *a, const struct run_facts *b);

#endif
