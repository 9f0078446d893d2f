/* lacks.c - see lacks.h. */
#include "arch/lacks.h"

const char *model_lacks(const struct model_config *c, int64_t tokens)
{
    if (c->family->delta)
        return "linear attention";
    if (c->family->altup)
        return "several residual streams";
    return c->indexer.top_k && tokens > c->indexer.top_k ?
               "sparse attention beyond index_topk" :
               NULL;
}
