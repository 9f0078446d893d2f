/* linears.c - which linears a decoder layer has: names, shapes, inputs. */
#include <stdio.h>
#include <string.h>

#include "model/config.h"

const char *input_class_name(enum input_class c)
{
    static const char *const name[IN_COUNT] = { "attn_in", "attn_out", "mlp_in",
                                                "mlp_mid" };

    return name[c];
}

int model_linears(const struct model_config *c, int64_t layer,
                  struct linear *out)
{
    int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    int64_t h = c->hidden_size, i = c->intermediate_size;
    const struct {
        const char *name;
        enum input_class input;
        int64_t rows, cols;
        bool bias;
    } row[] = {
        { "self_attn.q_proj", IN_ATTN, q, h, c->qkv_bias },
        { "self_attn.k_proj", IN_ATTN, kv, h, c->qkv_bias },
        { "self_attn.v_proj", IN_ATTN, kv, h, c->qkv_bias },
        { "self_attn.o_proj", IN_ATTN_OUT, h, q, c->o_bias },
        { "mlp.gate_proj", IN_MLP, i, h, c->mlp_bias },
        { "mlp.up_proj", IN_MLP, i, h, c->mlp_bias },
        { "mlp.down_proj", IN_MLP_MID, h, i, c->mlp_bias },
    };

    for (size_t k = 0; k < ARRAY_LEN(row); k++) {
        out[k] = (struct linear){ .layer = layer,
                                  .input = row[k].input,
                                  .rows = row[k].rows,
                                  .cols = row[k].cols,
                                  .bias = row[k].bias };
        snprintf(out[k].module, sizeof(out[k].module), "model.layers.%lld.%s",
                 (long long)layer, row[k].name);
    }
    return (int)ARRAY_LEN(row);
}

bool model_find_linear(const struct model_config *c, const char *module,
                       struct linear *out)
{
    static const char prefix[] = "model.layers.";
    struct linear all[LINEARS_PER_LAYER_MAX];
    int64_t layer = 0;
    const char *p;
    int n;

    if (strncmp(module, prefix, sizeof(prefix) - 1))
        return false;
    for (p = module + sizeof(prefix) - 1; *p >= '0' && *p <= '9'; p++) {
        layer = layer * 10 + (*p - '0');
        if (layer >= c->n_layers)
            return false;
    }
    n = model_linears(c, layer, all);
    for (int i = 0; i < n; i++)
        if (!strcmp(module, all[i].module)) {
            *out = all[i];
            return true;
        }
    return false;
}
