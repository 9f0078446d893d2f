/* choice_cost.c - see choice_cost.h. */
#include "calib/choice_cost.h"

#include <stdlib.h>

/* Experts of a token, shared ones as one. */
static int64_t experts_of(const struct model_config *c, int64_t layer)
{
    return c->moe.top_k + (model_layer_width(c, layer) > 0);
}

int choice_cost(const struct model *m, int64_t layer, const void *from,
                const void *to, const float *g, int64_t n, double *nats,
                struct err *e)
{
    size_t h = (size_t)model_config(m)->hidden_size;
    size_t row = h * dtype_bits(model_dtype(m)) / 8;
    float *x = mem_zero(3 * h, sizeof(*x), "gradients", e), *y, *slope;
    double sum = 0;
    int rc = 0;

    if (!x)
        return e->code;
    y = x + h;
    slope = y + h;
    for (size_t t = 0; t < (size_t)n && rc >= 0; t++) {
        double change = 0;

        /* both are types of a model */
        (void)!to_f32(x, (const char *)from + t * row, model_dtype(m), h);
        (void)!to_f32(y, (const char *)to + t * row, model_dtype(m), h);
        rc = model_get(m, slope, g + t * h, h * sizeof(*g), e);
        for (size_t i = 0; i < h; i++)
            change += ((double)y[i] - (double)x[i]) * (double)slope[i];
        sum += change * change;
    }
    free(x);
    *nats = sum / (double)(4 * n * experts_of(model_config(m), layer));
    return rc;
}
