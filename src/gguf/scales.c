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

    if (!wide || !to || !to_f32(wide, q->scales, q->scale_dtype, n)) {
        free(wide);
        free(to);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        to[i] = f16_from_f32(wide[i]);
        if (f32_from_f16(to[i]) != wide[i]) {
            err_set(e, E_CONFIG,
                    "'%.200s': the scale of output %zu, group %zu is %.9g, "
                    "which F16 does not hold: GGUF would change it",
                    module, i / (size_t)q->groups, i % (size_t)q->groups,
                    (double)wide[i]);
            free(to);
            to = NULL;
            break;
        }
    }
    free(wide);
    return to;
}
