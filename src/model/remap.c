/* remap.c - see remap.h. */
#include "model/remap.h"

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
