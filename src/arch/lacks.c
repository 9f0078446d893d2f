/* lacks.c - see lacks.h. */
#include "arch/lacks.h"

const char *model_device_lacks(const struct model_config *c, int64_t tokens)
{
    return c->indexer.top_k && tokens > c->indexer.top_k ?
               "sparse attention beyond index_topk" :
               NULL;
}

const char *model_gradient_lacks(const struct model_config *c, int64_t tokens)
{
    if (c->family->delta)
        return "linear attention";
    if (c->family->altup)
        return "several residual streams";
    return model_device_lacks(c, tokens);
}
