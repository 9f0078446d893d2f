/* hessian_set.h - the Hessians of a run of forge-hessian, by name.
 *
 * A Hessian is either accumulated from activation frames, or merged from
 * hessian frames of several inputs (the weighted mean of hessian.h). */
#ifndef FORGE_HESSIAN_SET_H
#define FORGE_HESSIAN_SET_H

#include "common/io/stream.h"
#include "hessian/hessian.h"
#include "hessian/hessian_shape.h"

struct hessian_set;

/* E_TEMP. */
MUST_CHECK int hessian_set_open(struct hessian_set **c,
                                const struct hessian_set_params *p,
                                struct err *e);
/* Lend what is written from here on, by l. */
void hessian_set_lend(struct hessian_set *c, struct ledger *l);
/* Add an activation frame NAME [tokens, C].  Companion frames in front of it,
 * NAME.drift [tokens, C], NAME.output and NAME.gap [tokens, R] of the same
 * sequence, are the y of cross moments with x = NAME (cross.h).  The moments
 * are written as `cross` frames of the companions' names in front of NAME's
 * hessian.  With diagonal blocks (params.block) companions are ignored.
 * Of a loan f->data is where it is mapped; whether its lender lived must be asked
 * (ledger_was_there()) before the result is emitted.
 * E_DATA: an element is not finite; the frame's shape, modules or companions
 * differ from the earlier ones of the same name; E_TEMP; E_DEVICE. */
MUST_CHECK int hessian_set_activation(struct hessian_set *c,
                                      const struct frame *f, struct err *e);
/* Whether f is the first activation of its name, is no companion, and no
 * companion has come for it. */
bool hessian_set_alone(const struct hessian_set *c, const struct frame *f);
/* Lease memory for the Hessian of that name, before it is blended.  False: there is
 * none, or it cannot be blended there. */
bool hessian_set_lease(struct hessian_set *c, const char *name,
                       uint64_t elements, struct hessian_lease *l);
void hessian_set_unlease(struct hessian_set *c, struct hessian_lease *l);
/* The Hessian of all activations of a name, not blended, computed elsewhere. */
struct hessian_made {
    uint64_t tokens;
    float *data; /* see hessian_given(); NULL: it is in the lease */
    struct hessian_lease lease;
};
/* Take the one of f's name; owns m's memory, on errors too.  E_DATA: the name has
 * come before; E_TEMP. */
MUST_CHECK int hessian_set_given(struct hessian_set *c, const struct frame *f,
                                 struct hessian_made *m, struct err *e);
/* Merge a hessian frame, or a cross frame in front of it; one without samples
 * adds nothing.  E_DATA: no Hessian, or its shape or modules differ from those
 * before; E_TEMP. */
MUST_CHECK int hessian_set_part(struct hessian_set *c, const struct frame *f,
                                struct err *e);
/* The same, whose payload stream_later() leaves in r at `at` until the name is emitted. */
MUST_CHECK int hessian_set_later(struct hessian_set *c, const struct frame *f,
                                 struct stream_reader *r, uint64_t at,
                                 struct err *e);
/* Input stream number `input` has given all it has of this name: whether now all
 * n_inputs have. */
bool hessian_set_complete(struct hessian_set *c, const char *name, int input);
/* Whether params.share, or params.prior, needs any of the frames of this input: those of
 * expert e go to share e mod shares, whole. */
bool hessian_set_wants(const struct hessian_set *c, const char *name);
/* Take what `from`, with params.prior and the same params.blend, has kept. */
void hessian_set_take_prior(struct hessian_set *c, struct hessian_set *from);
/* Write the Hessian called name, and its cross moments; name NULL: all that
 * have not been written, in the order in which their names came.  Without
 * tokens it is the identity with samples 0.  Returns the number written, or
 * E_DATA: an element is not finite; E_TEMP; E_DEVICE; errors of writing. */
MUST_CHECK int hessian_set_emit(struct hessian_set *c, const char *name,
                                struct stream_writer *w, struct err *e);
void hessian_set_close(struct hessian_set *c); /* NULL is allowed */

#endif
