/* Any config.json: refused, or a model whose linears have names and sizes. */
#include <stdlib.h>
#include <string.h>

#include "arch/config.h"
#include "model/rope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct linear l, found;
    float inv[HEAD_DIM_MAX / 2];
    struct model_config c;
    struct err e;
    int64_t count, step;

    if (model_config_parse(&c, (const char *)data, n, "fuzz", &e) < 0)
        return 0;
    count = model_linear_count(&c, c.n_layers - 1);
    step = 1 + count / 1000;
    for (int64_t i = 0; i < count; i += step) {
        model_linear(&c, c.n_layers - 1, i, &l);
        if (!model_find_linear(&c, l.module, &found) || l.rows <= 0 ||
            l.cols <= 0 || found.rows != l.rows || found.expert != l.expert)
            __builtin_trap();
    }
    model_layer_slides(&c, c.n_layers - 1);
    rope_frequencies(&c.rope, c.head_dim, inv);
    model_config_release(&c);
    return 0;
}
