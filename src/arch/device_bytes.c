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

/* ---- gradients ---- */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* The linears of attention, all at once; or those of the widest MLP. */
static double gradient_layer_bytes(const struct model_config *c, int64_t layer,
                                   double item)
{
    int64_t n = model_linear_common(c, layer);
    double h = (double)c->hidden_size, heads = (double)c->n_heads,
           kv = (double)c->n_kv_heads, d = (double)c->head_dim,
           v = (double)c->v_dim;
    double attention = 0, one = 0, mlp = 0, wide = 0, rows;
    struct linear l;

    /* the linears' outputs, twice where there are norms of all heads or
     * latents; queries and keys turned, and gradients */
    rows = 2 * h + 3 * (heads * d + kv * d) + 2 * kv * v + heads * v;
    for (int64_t i = 0; i <= n; i++) {
        double size;

        if (i < n)
            model_linear(c, layer, i, &l);
        else if (c->mla.kv_lora)
            model_kv_b(c, layer, &l);
        else
            break;
        size = (double)l.rows * (double)l.cols;
        one = larger(one, size);
        if (l.input == IN_MLP || l.input == IN_MLP_MID) {
            mlp += size;
            wide = larger(wide, (double)l.rows);
            continue;
        }
        attention += size;
        rows += 2 * (double)l.rows;
    }
    if (model_layer_experts(c, layer)) {
        mlp += 3 * h * (double)c->moe.width;
        one = larger(one, h * (double)c->moe.width);
        wide = larger(wide, (double)c->moe.width);
    }
    attention = 4 * attention + BATCH_ROWS * 4 * rows + GRADIENT_SCORES;
    mlp = 4 * mlp + BATCH_ROWS * 4 * (2 * h + 3 * wide) +
          GRADIENT_ROWS * h * (8 + 2 * item);
    return larger(attention, mlp) + one * item;
}

double gradient_device_bytes(const struct model_config *c, size_t item)
{
    double h = (double)c->hidden_size, most = layers_device_bytes(c, item);
    double head = (double)c->vocab_size * h * 2 +
                  GRADIENT_VOCABULARY * 4 * (h + BATCH_ROWS) +
                  GRADIENT_ROWS * h * (8 + 2 * (double)item);

    for (int64_t i = 0; i < c->n_layers; i++)
        most = larger(most, gradient_layer_bytes(c, i, (double)item));
    return larger(most, head);
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
