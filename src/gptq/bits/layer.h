/* layer.h - takes the Hessians and the weights of a stream, one after the other, as
 * linears of units.h. */
#ifndef FORGE_BITS_LAYER_H
#define FORGE_BITS_LAYER_H

#include "arch/choice.h"
#include "gptq/bits/units.h"
#include "gptq/hessian_file.h"

struct bits_layer {
    struct bits_units units;
    struct module_choice choice; /* of linears that are to have grids */
    struct hessian_file *hessians, *fisher; /* the stream's; of gradients */
    int64_t layer;   /* of the last Hessian; at first -1 */
    uint64_t tokens; /* of that layer: the most that one of its inputs has */
    float *inputs;   /* of that Hessian, errors.h */
};

/* A frame of role hessian.  E_DATA: it is none; E_TEMP. */
MUST_CHECK int bits_hessian(struct bits_layer *r, const struct frame *f,
                            struct err *e);
/* A frame of role weight; of a linear that is not chosen, what stands for others is
 * kept (units.h).  E_DATA: no linear of the model, or without a Hessian;
 * E_TEMP. */
MUST_CHECK int bits_weight_frame(struct bits_layer *r, const struct frame *w,
                                 struct err *e);

#endif
