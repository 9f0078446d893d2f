/* device_bytes.c - see device_bytes.h. */
#include "arch/device_bytes.h"

static double layer_bytes(const struct model_config *c, int64_t layer,
                          double item)
{
    int64_t n = model_linear_common(c, layer), widest = c->hidden_size;
    double weights = 0, rows = 3.0 * (double)c->hidden_size;
    struct linear l;

    for (int64_t i = 0; i < n; i++) {
        model_linear(c, layer, i, &l);
        weights += (double)l.rows * (double)l.cols;
        rows += (double)l.rows;
        widest = l.rows > widest ? l.rows : widest;
        widest = l.cols > widest ? l.cols : widest;
    }
    if (c->mla.kv_lora) {
        model_kv_b(c, layer, &l);
        weights += (double)l.rows * (double)l.cols;
        rows += (double)l.rows;
    }
    if (model_layer_experts(c, layer)) {
        weights += 6.0 * (double)c->moe.width * (double)c->hidden_size;
        rows += 3.0 * (double)(c->moe.width + c->hidden_size);
    }
    rows += 2.0 * (double)widest;
    return (weights + BATCH_ROWS * rows) * item +
           BATCH_ROWS * 2.0 * sizeof(float) * (double)widest;
}

double layers_device_bytes(const struct model_config *c, size_t item)
{
    double most = 0;

    for (int64_t i = 0; i < c->n_layers; i++) {
        double bytes = layer_bytes(c, i, (double)item);

        most = bytes > most ? bytes : most;
    }
    return most;
}

double token_device_bytes(const struct model_config *c, size_t item)
{
    int64_t widest = c->hidden_size;
    struct linear l;

    for (int64_t i = 0; i < c->n_layers; i++)
        for (int64_t k = 0; k < model_linear_common(c, i); k++) {
            model_linear(c, i, k, &l);
            widest = l.cols > widest ? l.cols : widest;
        }
    return (double)(c->hidden_size + widest) * (double)item;
}
