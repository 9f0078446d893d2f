/* layer.c - see layer.h. */
#include "gptq/bits/layer.h"

#include <stdlib.h>
#include <string.h>

#include "gptq/solve/factor.h"

/* The tokens of a layer, of which an expert has a part. */
static void count(struct bits_layer *r, const struct frame *f)
{
    int64_t layer = tensor_name_layer(f->name);

    if (layer != r->layer)
        r->tokens = 0;
    r->layer = layer;
    if (f->samples > r->tokens)
        r->tokens = f->samples;
}

/* r->inputs of a Hessian (errors.h), with the prior and the damping that forge quantize
 * solves with. */
static int factor(struct bits_layer *r, const struct frame *frame,
                  struct err *e)
{
    const struct hessian_entry *h = hessian_file_taken(r->hessians);
    const struct factor_params p = { .cols = h->cols,
                                     .block = h->block,
                                     .group = r->units.grids.grid[0].group,
                                     .order = ORDER_ACTIVATION,
                                     .damping = FACTOR_DAMPING };
    float *data = mem_alloc(frame->len, h->name, e);
    struct factor *f = NULL;
    int rc;

    if (!data ||
        mem_grow(&r->inputs, h->cols * sizeof(float), h->name, e) < 0) {
        free(data);
        return e->code;
    }
    memcpy(data, frame->data, frame->len);
    if (!tensor_name_is_expert(h->name))
        (void)hessian_file_add_prior(h, HESSIAN_PRIOR, data);
    rc = factor_build(&f, &p, data, e);
    free(data);
    if (rc < 0)
        return err_prefix(e, "'%s'", h->name);
    /* not positive definite: forge-solve rounds to nearest */
    for (uint64_t c = 0; c < h->cols; c++) {
        float x = rc ? 0 : factor_at_row(f, c, c)[c % FACTOR_PANEL];

        r->inputs[rc ? c : f->input[c]] = rc ? h->diagonal[c] : x * x;
    }
    factor_free(f);
    return 0;
}

int bits_hessian(struct bits_layer *r, const struct frame *f, struct err *e)
{
    count(r, f);
    if (hessian_file_look(r->hessians, f, 0, f->data, f->len, e) < 0)
        return e->code;
    return f->modules && *f->modules ? factor(r, f, e) : 0;
}

static int set_inputs(struct bits_layer *r, const struct frame *w,
                      struct bits_module *m, struct bits_weight *b,
                      struct err *e)
{
    struct hessian_entry *entry;

    if (hessian_file_find(r->hessians, w->name, w->dims[1], &entry, e) < 0 ||
        hessian_file_diagonal(r->hessians, entry, &b->squares, e) < 0)
        return e->code;
    b->inputs = r->inputs;
    m->share = m->l.expert >= 0 && r->tokens ?
                   (double)entry->samples / (double)r->tokens :
                   1;
    return 0;
}

int bits_weight_frame(struct bits_layer *r, const struct frame *w,
                      struct err *e)
{
    static const struct bits_grids none = { .n = 0 };
    struct bits_module m = { .chosen = module_chosen(&r->choice, w->name) };
    struct bits_weight b = {
        .name = w->name, .data = w->data, .dtype = w->dtype, .inputs = NULL
    };
    struct hessian_entry *entry;

    m.known = r->fisher && hessian_file_has(r->fisher, w->name);
    if (!m.chosen && !m.known)
        return 0;
    if (w->ndim != 2 || !dtype_is_float(w->dtype) || !w->dims[0] || !w->dims[1])
        return err_set(e, E_DATA, "'%s': a weight is a matrix of floats",
                       w->name);
    if (!model_find_linear(r->units.config, w->name, &m.l) ||
        (uint64_t)m.l.rows != w->dims[0] || (uint64_t)m.l.cols != w->dims[1])
        return err_set(e, E_DATA, "'%s' is no linear of the model", w->name);
    b.rows = w->dims[0];
    b.cols = w->dims[1];
    if (set_inputs(r, w, &m, &b, e) < 0)
        return e->code;
    if (m.known &&
        (hessian_file_find(r->fisher, w->name, b.rows, &entry, e) < 0 ||
         hessian_file_diagonal(r->fisher, entry, &b.outputs, e) < 0))
        return e->code;
    return bits_measure(&b, m.chosen ? &r->units.grids : &none, &m.errors, e) <
                   0 ?
               e->code :
               bits_units_add(&r->units, &m, e);
}
