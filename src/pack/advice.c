/* advice.c - see advice.h. */
#include "pack/advice.h"

void pack_advise(const struct pack_run *run, const struct pack_module *m,
                 unsigned *advised)
{
    struct layout_shape s = { m->name, m->rows, m->cols };
    unsigned a = layout_advice(run->layout, run->symmetric > 0, m->group, &s) &
                 ~*advised;

    for (int b = 0; b < ADVICE_BITS; b++)
        if (a & 1u << b)
            ((1u << b) & (ADVICE_SHORT_GROUP | ADVICE_GPTQ_GROUP) ?
                 warning :
                 info)("%s: %s", m->name, layout_advice_text(1u << b));
    *advised |= a;
}
