/* Any config.json: refused, or a model whose linears have names and sizes. */
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "model/rope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct linear l[LINEARS_PER_LAYER_MAX], found;
    float inv[HEAD_DIM_MAX / 2];
    struct model_config c;
    struct err e;
    int count;

    if (model_config_parse(&c, (const char *)data, n, "fuzz", &e) < 0)
        return 0;
    count = model_linears(&c, c.n_layers - 1, l);
    for (int i = 0; i < count; i++)
        if (!model_find_linear(&c, l[i].module, &found) || l[i].rows <= 0 ||
            l[i].cols <= 0 || found.rows != l[i].rows)
            __builtin_trap();
    model_layer_slides(&c, c.n_layers - 1);
    rope_frequencies(&c.rope, c.head_dim, inv);
    model_config_release(&c);
    return 0;
}
