/* tuned_there.h - a linear's numbers behind its codes, on the host or a device. */
#ifndef FORGE_TUNED_THERE_H
#define FORGE_TUNED_THERE_H

#include "model/model.h"
#include "tune/tune_table.h"

struct tuned_module {
    const char *name; /* of its codes' frame */
    int64_t layer, rows, cols, groups, group;
    enum dtype scale_dtype;
    int bits;
    uint8_t *codes;       /* as the frame has them */
    const uint32_t *meta; /* [rows, groups]; NULL: none came */
    /* Where layers run, [rows, cols] each, one block: the numbers, Adam's moments. */
    float *v, *first, *second;
    size_t at; /* weights of its layer's modules in front of it */
    /* [rows, cols], `at` in its layer's gradients; NULL: none since the last step. */
    float *g;
    /* On a device: qmeta4, and the weights, elements, as v has them. */
    uint32_t *meta_there;
    void *w;
};

/* The functions of the device where the layers of m run. */
MUST_CHECK int tuned_there_open(const struct tune_table **table, struct err *e);
/* Take v[rows, cols] of the host to the device, as m->v; the moments are 0.  E_TEMP. */
MUST_CHECK int tuned_there_place(const struct model *on,
                                 const struct tune_table *table,
                                 struct tuned_module *m, const float *v,
                                 struct err *e);
/* A step of Adam of those of n linears that are of `layer` and have gradients; arguments
 * as tune_table.step(). */
MUST_CHECK int tuned_there_step(const struct model *on,
                                const struct tune_table *table,
                                const struct tuned_module *m, size_t n,
                                int64_t layer, float rate, const float back[2],
                                struct err *e);
/* *to [rows, cols] = numbers that are where layers run; free() it. */
MUST_CHECK int tuned_there_fetch(const struct model *on,
                                 const struct tuned_module *m,
                                 const float *from, float **to, struct err *e);

#endif
