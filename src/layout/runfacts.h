/* runfacts.h - how a checkpoint was packed; forge-pack tells it forge-shard.
 *
 * It is sent as a note frame named "run":
 *
 *     {"layout":"awq","bits":4,"group":128,"symmetric":true,
 *      "scale_dtype":"F16"}
 *
 * with "mixed":true if these are only what most modules have, with
 * "capability":"avx512" or another for layout int4pack, and "act_order":true if
 * the inputs of a group are not contiguous. */
#ifndef FORGE_RUNFACTS_H
#define FORGE_RUNFACTS_H

#include "common/math/dtype.h"
#include "layout/int4pack.h"
#include "layout/layout.h"

#define RUN_NOTE "run" /* name of the frame */

/* Contents of the note. */
struct run_facts {
    enum layout layout;
    int bits;       /* of a code: 4 or 8 */
    uint64_t group; /* inputs per scale */
    bool symmetric;
    enum dtype scale_dtype;
    bool mixed;     /* some modules have other bits, group or symmetry */
    bool act_order; /* inputs of a group are not contiguous */
    enum int4pack_capability capability; /* LAYOUT_INT4PACK only */
};

/* *text: the JSON on one line; free() it.  E_TEMP. */
MUST_CHECK int run_facts_write(const struct run_facts *r, char **text,
                               struct err *e);
/* Parse text[len]; unknown members are ignored.  E_DATA: not such a note;
 * `where` prefixes the message. */
MUST_CHECK int run_facts_read(struct run_facts *r, const char *text, size_t len,
                              const char *where, struct err *e);
/* Whether modules of both may be in one checkpoint: equal, but act_order, which a
 * module may have that comes later. */
bool run_facts_agree(const struct run_facts *a, const struct run_facts *b);
bool run_facts_equal(const struct run_facts *a, const struct run_facts *b);

#endif
