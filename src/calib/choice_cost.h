/* choice_cost.h - what it costs when a token goes to another expert, which the gradients
 * of a mixture's routers are weighted by (margins of model/moe.h). */
#ifndef FORGE_CHOICE_COST_H
#define FORGE_CHOICE_COST_H

#include "model/model.h"

/* An estimate of the KL divergence, in nats, that one of a token's experts in place of
 * another makes.  from, to[n, H], elements, the host's: the residual stream in front of a
 * mixture's MLP and behind it; g[n, H], where layers run: gradients of random sums of the
 * logits (model/backward_table.h) with respect to the latter.
 *
 * When the MLP's output y = to - from changes by d, KL is the mean of (g . d)^2 / 2 over
 * the sums.  If the k experts of a token, shared ones among them, have equal parts in
 * (g . y)^2, one that is replaced by another, independent one makes (g . y)^2 / k.  Those
 * that change places have the smallest weights, and are like each other:
 *
 *     *nats = mean over tokens of (g . y)^2 / (4 k).
 *
 * 0.025 in the last layer of deepseek-v3-22m, where 0.036 for each choice were measured.
 * E_TEMP; errors of the device. */
MUST_CHECK int choice_cost(const struct model *m, int64_t layer,
                           const void *from, const void *to, const float *g,
                           int64_t n, double *nats, struct err *e);

#endif
