/* remap.c - see remap.h. */
#include "model/remap.h"

#include <stdlib.h>

int remap_check(const struct remap *r, struct err *e)
{
    bool *taken = mem_zero((size_t)r->kept, sizeof(*taken), "expert map", e);
    int64_t n = 0;
    int rc = taken ? 0 : e->code;

    for (int64_t x = 0; x < r->experts && !rc; x++) {
        int32_t id = r->map[x];

        if (id < -1 || id >= r->kept)
            rc =
                err_set(e, E_DATA, "expert map: expert %lld becomes %d of %lld",
                        (long long)x, id, (long long)r->kept);
        else if (id >= 0 && taken[id])
            rc = err_set(e, E_DATA, "expert map: two experts become %d", id);
        else if (id >= 0)
            taken[id] = ++n;
    }
    if (!rc && n != r->kept)
        rc = err_set(e, E_DATA,
                     "expert map: %lld experts are kept, %lld were to be",
                     (long long)n, (long long)r->kept);
    free(taken);
    return rc;
}

static void one_token(const struct remap *r, int32_t *id, float *w,
                      int64_t top_k, struct remap_counts *c)
{
    double before = 0, after = 0;
    int64_t left = 0;

    for (int64_t k = 0; k < top_k; k++) {
        int32_t to = r->map[id[k]];

        before += (double)w[k];
        id[k] = to < 0 ? 0 : to;
        if (to < 0)
            w[k] = 0;
        after += (double)w[k];
        left += to >= 0;
    }
    for (int64_t k = 0; k < top_k && r->renormalize && after > 0; k++)
        w[k] = (float)((double)w[k] * (before / after));
    c->tokens++;
    c->pruned += (uint64_t)(top_k - left);
    c->lost += !left;
}

int remap_tokens(const struct remap *r, int32_t *ids, float *weights, int64_t n,
                 int64_t top_k, struct remap_counts *counts, struct err *e)
{
    struct remap_counts none = { 0 };

    for (int64_t i = 0; i < n * top_k; i++)
        if (ids[i] < 0 || ids[i] >= r->experts)
            return err_set(e, E_DATA, "token %lld: expert %d of %lld",
                           (long long)(i / top_k), ids[i],
                           (long long)r->experts);
    for (int64_t i = 0; i < n; i++)
        one_token(r, ids + i * top_k, weights + i * top_k, top_k,
                  counts ? counts : &none);
    return 0;
}
