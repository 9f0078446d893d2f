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

static void close_accumulators(struct entry *t)
{
    hessian_close(t->acc);
    t->acc = NULL;
    for (int k = 0; k < PAIRS; k++) {
        cross_close(t->cross[k]);
        t->cross[k] = NULL;
    }
}

void entry_drop(struct entry *t)
{
    close_accumulators(t);
    merging_release(&t->whole);
    for (int k = 0; k < PAIRS; k++)
        merging_release(&t->cross_whole[k]);
}

static int add(struct merging *m, const float *part, uint64_t n,
               uint64_t samples, struct err *e)
{
    m->n = n;
    return merging_add(m, part, samples, e);
}

int entry_cols(struct entry *t, uint64_t cols, const struct frame *f,
               struct err *e)
{
    if (t->cols && t->cols != cols)
        return err_set(e, E_DATA, "'%s': parts of different shapes", f->name);
    t->cols = cols;
    return 0;
}

int entry_merge(struct entry *t, struct err *e)
{
    uint64_t tokens = t->acc ? hessian_tokens(t->acc) : 0;
    const float *data;

    /* before its cross moments, whose packed tokens it may have yet to read */
    if (tokens && (hessian_finish(t->acc, &data, e) < 0 ||
                   add(&t->whole, data, t->elements, tokens, e) < 0))
        return e->code;
    for (int k = 0; k < PAIRS && tokens; k++) {
        if (!t->cross[k])
            continue;
        if (cross_finish(t->cross[k], 1, &data, e) < 0 ||
            add(&t->cross_whole[k], data, t->cross_rows[k] * t->cols, tokens,
                e) < 0)
            return e->code;
        t->cross_samples[k] += tokens;
    }
    t->samples += tokens;
    close_accumulators(t);
    return 0;
}
