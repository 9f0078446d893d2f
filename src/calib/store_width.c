/* store_width.c - how many numbers a row of a store has; see store.h. */
#include "calib/store.h"

/* Elements per row needed for the activations of any layer, plus `reference`
 * elements for the reference stream's (0: none); but not at POINT_MLP_MID, if
 * its linear writes into the residual stream: the reference has passed that
 * linear by then. */
static int64_t widest(const struct model_config *c, int64_t reference)
{
    int64_t w = 0;

    for (int64_t i = 0; i < c->n_layers; i++)
        for (enum point p = POINT_ATTN_IN; p < POINT_OUT; p++) {
            bool alone = p == POINT_MLP_MID && point_adds(c, i, p);
            int64_t n = point_width(c, i, p) + (alone ? 0 : reference);

            if (point_exists(c, i, p) && n > w)
                w = n;
        }
    return w;
}

/* The same for the activations that a reference stream keeps. */
static int64_t widest_reference(const struct model_config *c)
{
    int64_t w = 0;

    for (int64_t i = 0; i < c->n_layers; i++)
        for (enum point p = POINT_ATTN_IN; p < POINT_OUT; p++)
            if (point_exists(c, i, p) && !point_adds(c, i, p) &&
                point_width(c, i, p) > w)
                w = point_width(c, i, p);
    return w;
}

struct store_width store_width(const struct model_config *c, bool reference)
{
    int64_t o = reference ? widest_reference(c) : 0;

    return (struct store_width){ model_row(c), widest(c, o), o };
}
