/* hessian_set.h - the Hessians that a run of forge-hessian works on, by name.
 *
 * An entry is either an accumulator that activations are added to or the
 * weighted sum of Hessians that were computed elsewhere. */
#ifndef FORGE_HESSIAN_SET_H
#define FORGE_HESSIAN_SET_H

#include "common/io/stream.h"

struct hessian_set_params {
    enum dtype dtype;    /* of the products; DT_NONE: as the activations */
    uint64_t block;      /* size of diagonal blocks; 0: the whole matrix */
    uint64_t max_tokens; /* per name; 0: all */
    double blend;        /* see blend.h; 0: none */
    int n_inputs;        /* a sum is complete when all inputs gave a part */
};

struct hessian_set;

MUST_CHECK int hessian_set_open(struct hessian_set **c,
                                const struct hessian_set_params *p,
                                struct err *e);
/* An activation frame.  NAME.drift [n, C] and NAME.output [n, R], in front
 * of a sequence's NAME, make it also accumulate cross moments (cross.h), which
 * come out as `cross` frames of these names in front of NAME's hessian; not of
 * diagonal blocks.  E_DATA: not finite, or unlike earlier frames of the same
 * name. */
MUST_CHECK int hessian_set_activation(struct hessian_set *c,
                                      const struct frame *f, struct err *e);
/* Whether f is an activation that comes alone, the first of its name: neither one
 * that belongs to another, nor one that such a one came for. */
bool hessian_set_alone(const struct hessian_set *c, const struct frame *f);
/* The Hessian of all activations of f's name, in their place: data (see
 * hessian_given()) of so many tokens. */
MUST_CHECK int hessian_set_given(struct hessian_set *c, const struct frame *f,
                                 uint64_t tokens, float *data, struct err *e);
/* A hessian frame of input number `input`; *complete: every input has now
 * given its part of this name. */
MUST_CHECK int hessian_set_part(struct hessian_set *c, const struct frame *f,
                                int input, bool *complete, struct err *e);
/* Write the Hessian called name (of no token: the identity, samples 0), or with NULL all that are left, in the order
 * in which their names came.  Returns how many, or an error. */
MUST_CHECK int hessian_set_emit(struct hessian_set *c, const char *name,
                                struct stream_writer *w, struct err *e);
void hessian_set_close(struct hessian_set *c); /* NULL is allowed */

#endif
