/* collect.h - the Hessians that a run of forge-hessian works on, by name.
 *
 * An entry is either an accumulator that activations are added to or the
 * weighted sum of Hessians that were computed elsewhere. */
#ifndef FORGE_COLLECT_H
#define FORGE_COLLECT_H

#include "common/io/stream.h"

struct collect_params {
    enum dtype dtype;    /* of the products; DT_NONE: as the activations */
    uint64_t block;      /* size of diagonal blocks; 0: the whole matrix */
    uint64_t max_tokens; /* per name; 0: all */
    double blend;        /* see blend.h; 0: none */
    int n_inputs;        /* a sum is complete when all inputs gave a part */
};

struct collect;

MUST_CHECK int collect_open(struct collect **c, const struct collect_params *p,
                            struct err *e);
/* An activation frame.  NAME.drift [n, C] and NAME.output [n, R], in front
 * of a sequence's NAME, make it also accumulate cross moments (cross.h), which
 * come out as `cross` frames of these names in front of NAME's hessian; not of
 * diagonal blocks.  E_DATA: not finite, or unlike earlier frames of the same
 * name. */
MUST_CHECK int collect_activation(struct collect *c, const struct frame *f,
                                  struct err *e);
/* Whether f is an activation that comes alone, the first of its name: neither one
 * that belongs to another, nor one that such a one came for. */
bool collect_alone(const struct collect *c, const struct frame *f);
/* The Hessian of all activations of f's name, in their place: data (see
 * hessian_given()) of so many tokens. */
MUST_CHECK int collect_given(struct collect *c, const struct frame *f,
                             uint64_t tokens, float *data, struct err *e);
/* A hessian frame of input number `input`; *complete: every input has now
 * given its part of this name. */
MUST_CHECK int collect_part(struct collect *c, const struct frame *f, int input,
                            bool *complete, struct err *e);
/* Write the Hessian called name (of no token: the identity, samples 0), or with NULL all that are left, in the order
 * in which their names came.  Returns how many, or an error. */
MUST_CHECK int collect_emit(struct collect *c, const char *name,
                            struct stream_writer *w, struct err *e);
void collect_close(struct collect *c); /* NULL is allowed */

#endif
