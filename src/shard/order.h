/* order.h - the order in which tensors fill the shards, and how far a stream that has
 * not ended has come in it.
 *
 * First the parts of quantized linears inside the layers, then all other tensors; both
 * in natural order of names (layers.2 before layers.10).  So the order depends on the
 * set of tensors only, and the shards of a layer can be written when its codes are
 * there, long before the other tensors come. */
#ifndef FORGE_SHARD_ORDER_H
#define FORGE_SHARD_ORDER_H

#include "arch/config.h"
#include "shard/collect.h"
#include "shard/plainlist.h"

/* For qsort(): of struct out_tensor. */
int order_compare(const void *a, const void *b);

/* Which linears of the layers have come, quantized or not.  A linear that the config does
 * not have, or whose parts come apart, may go into a later shard than its name says.
 * Zero-initialise; arrival_release() when done. */
struct arrival {
    bool in_order; /* what has not come when a tensor of a later layer comes is
                       * not waited for */
    struct names due; /* all linears of the layers, in natural order */
    bool *come;       /* [due.n] */
    size_t first;     /* of those to wait for */
    char module[MODULE_PATH_MAX]; /* the linear whose parts are coming */
};

/* E_TEMP. */
MUST_CHECK int arrival_open(struct arrival *a,
                            const struct model_config *config, bool in_order,
                            struct err *e);
/* A tensor has come. */
void arrival_add(struct arrival *a, const struct out_tensor *t);
/* Whether all that goes before t has come. */
bool arrival_passed(const struct arrival *a, const struct out_tensor *t);
void arrival_release(struct arrival *a);

#endif
