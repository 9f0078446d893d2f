/* lacks.c - see lacks.h. */
#include "arch/lacks.h"

const char *gradient_lacks(const struct model_config *c, int64_t tokens)
{
    if (c->attention_cap > 0 || c->logit_cap > 0)
        return "soft caps";
    if (c->family->act == ACT_GELU)
        return "GELU";
    if (model_norms(c)->attn_out)
        return "norms behind attention and MLP";
    if (c->family->fused_mlp)
        return "gate and up in one linear";
    if (model_adds_scaled(c) || c->logit_scale != 1)
        return "multipliers";
    if (c->family->rope_by_type)
        return "a RoPE of sliding layers";
    return model_lacks(c, tokens);
}

const char *gradient_device_lacks(const struct model_config *c, int64_t tokens)
{
    const char *lacks = gradient_lacks(c, tokens);

    if (lacks)
        return lacks;
    if (c->family->sinks)
        return "attention sinks";
    if (c->family->act == ACT_CLAMPED)
        return "clamped gates";
    return c->layer_nope ? "layers without RoPE" : NULL;
}

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
