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

const char *model_untried(const struct model_config *c)
{
    if (c->attention_cap > 0 || c->logit_cap > 0)
        return "soft caps";
    if (c->family->act == ACT_GELU)
        return "GELU";
    if (c->family->act == ACT_CLAMPED)
        return "clamped gates";
    if (c->family->sinks)
        return "attention sinks";
    if (model_norms(c)->attn_out)
        return "norms behind attention and MLP";
    if (c->family->fused_mlp)
        return "gate and up in one linear";
    if (model_adds_scaled(c) || c->logit_scale != 1)
        return "multipliers";
    if (c->family->rope_by_type)
        return "a RoPE of sliding layers";
    return c->layer_nope ? "layers without RoPE" : NULL;
}
