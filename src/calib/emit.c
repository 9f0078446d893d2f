/* emit.c - see emit.h. */
#include "calib/emit.h"

#include <stdio.h>
#include <string.h>

enum { MODULES_MAX = 16 * MODULE_PATH_MAX };

/* Fields that hidden states and activations share, of sequence i. */
static struct frame frame_of(const struct model *m, const struct batch *b,
                             int64_t i, int64_t width)
{
    struct frame f = { .dtype = model_dtype(m),
                       .ndim = 2,
                       .dims = { (uint64_t)b->length[i], (uint64_t)width },
                       .sequence = b->sequence[i],
                       .last = b->last && i == b->n - 1 };

    f.len = (size_t)(b->length[i] * width) * (f.dtype == DT_BF16 ? 2 : 4);
    return f;
}

/* Paths of the linears that read this input, a line each. */
static void list_modules(const struct model_config *c, int64_t layer,
                         enum input_class input, char *to)
{
    int64_t n = model_linear_common(c, layer);
    struct linear l;

    *to = 0;
    for (int64_t i = 0; i < n; i++) {
        model_linear(c, layer, i, &l);
        if (l.input == input) {
            if (*to)
                strcat(to, "\n");
            strcat(to, l.module);
        }
    }
}

static int write_hidden(struct stream_writer *w, const struct model *m,
                        const struct batch *b, int64_t layer, int64_t i,
                        struct err *e)
{
    struct frame f = frame_of(m, b, i, b->s.hidden_size);

    f.role = ROLE_HIDDEN;
    f.data = state_x(&b->s, b->s.first[i]);
    snprintf(f.name, sizeof(f.name), "model.layers.%lld", (long long)layer);
    return stream_write(w, &f, e);
}

static int write_activation(struct stream_writer *w, const struct model *m,
                            const struct batch *b, int64_t layer, int64_t i,
                            struct err *e)
{
    const struct model_config *c = model_config(m);
    int64_t width = point_width(c, layer, b->s.at);
    struct frame f = frame_of(m, b, i, width);
    char modules[MODULES_MAX];

    list_modules(c, layer, point_input(b->s.at), modules);
    f.role = ROLE_ACTIVATION;
    f.modules = modules;
    f.samples = f.dims[0];
    f.data = state_act(&b->s, width, b->s.first[i]);
    snprintf(f.name, sizeof(f.name), "model.layers.%lld.%s", (long long)layer,
             point_name(b->s.at));
    return stream_write(w, &f, e);
}

int emit_hidden(struct stream_writer *w, const struct model *m,
                const struct batch *b, int64_t layer, bool act, struct err *e)
{
    for (int64_t i = 0; i < b->n; i++)
        if (write_hidden(w, m, b, layer, i, e) < 0 ||
            (act && write_activation(w, m, b, layer, i, e) < 0))
            return e->code;
    return 0;
}

int emit_activation(struct stream_writer *w, const struct model *m,
                    const struct batch *b, int64_t layer, struct err *e)
{
    for (int64_t i = 0; i < b->n; i++)
        if (write_activation(w, m, b, layer, i, e) < 0)
            return e->code;
    return 0;
}
