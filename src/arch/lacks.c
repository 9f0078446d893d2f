/* lacks.c - see lacks.h. */
#include "arch/lacks.h"

const char *model_lacks(const struct model_config *c)
{
    if (c->attention_cap > 0 || c->logit_cap > 0)
        return "soft caps";
    if (c->family->act != ACT_SILU)
        return "GELU";
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
