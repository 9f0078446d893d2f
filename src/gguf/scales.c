/* scales.c - see scales.h. */
#include "gguf/scales.h"

#include <stdlib.h>

#include "common/math/dtype.h"

uint16_t *gguf_scales(const struct ck_quantized *q, const char *module,
                      struct err *e)
{
    size_t n = (size_t)(q->rows * q->groups);
    float *wide = mem_alloc(n * sizeof(*wide), module, e);
    uint16_t *to = mem_alloc(n * sizeof(*to), module, e);

    bool ok = wide && to;

    if (ok && !to_f32(wide, q->scales, q->scale_dtype, n))
        ok = !err_set(e, E_BUG, "'%.200s': scales are no floats", module);
    for (size_t i = 0; ok && i < n; i++)
        if (!f16_holds(wide[i], &to[i]))
            ok = !err_set(
                e, E_CONFIG,
                "'%.200s': the scale of output %zu, group %zu is %.9g, "
                "which F16 does not hold: GGUF would change it",
                module, i / (size_t)q->groups, i % (size_t)q->groups,
                (double)wide[i]);
    free(wide);
    if (!ok) {
        free(to);
        to = NULL;
    }
    return to;
}
