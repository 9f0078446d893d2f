/* gridrules.h - the grid of each linear of a model: a default, and rules for
 * those whose paths match a glob.
 *
 *     PATTERN=WORD[,WORD]...  a number: inputs per scale; sym, asym: whether
 *                             the zero point is in the middle; 4bit, 8bit;
 *                             one word for each
 *
 * The last rule that matches and says something decides that. */
#ifndef FORGE_GRIDRULES_H
#define FORGE_GRIDRULES_H

#include "arch/choice.h"

struct module_grid {
    uint64_t group; /* inputs per scale */
    bool symmetric; /* the zero point is in the middle */
    int bits;       /* of a code: 4 or 8 */
};
static inline bool module_grid_same(struct module_grid a, struct module_grid b)
{
    return a.group == b.group && a.symmetric == b.symmetric && a.bits == b.bits;
}

/* Where no rule says otherwise codes have 4 bits. */
struct grid_rules {
    const char *const *rule; /* as above */
    int n;
    uint64_t group; /* where no rule says otherwise */
    bool symmetric;
};

/* Options --group and --grid: -1 becomes GROUP_ALL in *group.  E_USAGE: it is no other
 * number from 8 to that, or one of n rules is not of the form above. */
MUST_CHECK int grid_options(int64_t *group, const char *const *rule, int n,
                            struct err *e);
/* E_USAGE: not of the form above. */
MUST_CHECK int grid_rule_check(const char *rule, struct err *e);
/* The grid of the linear with this path, or of which these are rows (name_rows of
 * tensor_name.h).  Rules have been checked. */
struct module_grid grid_rules_find(const struct grid_rules *r,
                                   const char *module);
/* Whether some linear has a symmetric grid, or an asymmetric one. */
bool grid_rules_any(const struct grid_rules *r, bool symmetric);
/* E_CONFIG: a rule matches no linear that is quantized; a rule's group does not
 * divide a linear's inputs; or linears that runtimes load as one matrix (choice.h)
 * have different grids. */
MUST_CHECK int grid_rules_check(const struct grid_rules *r,
                                const struct module_choice *ch,
                                const struct model_config *c, struct err *e);

#endif
