/* hessian_entry.c - see hessian_entry.h. */
#include "hessian/hessian_entry.h"

#include <stdlib.h>

const enum companion pair_companion[PAIRS] = { COMPANION_DRIFT,
                                               COMPANION_OUTPUT,
                                               COMPANION_GAP };

int room_need(struct room *r, size_t n, const char *what, struct err *e)
{
    if (r->cap >= n)
        return 0;
    if (mem_grow(&r->p, n, what, e) < 0)
        return e->code;
    r->cap = n;
    return 0;
}

void entry_drop(struct entry *t)
{
    hessian_close(t->acc);
    free(t->sum);
    for (int k = 0; k < PAIRS; k++) {
        cross_close(t->cross[k]);
        free(t->cross_sum[k]);
        t->cross[k] = NULL;
        t->cross_sum[k] = NULL;
    }
    t->acc = NULL;
    t->sum = NULL;
}
