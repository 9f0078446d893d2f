/* emit.h - frames of a batch. */
#ifndef FORGE_EMIT_H
#define FORGE_EMIT_H

#include "calib/feed.h"

/* One `hidden` frame per sequence, named after `layer`.  act: followed by the
 * activation at b->s.at, which makes it a state. */
MUST_CHECK int emit_hidden(struct stream_writer *w, const struct model *m,
                           const struct batch *b, int64_t layer, bool act,
                           struct err *e);
/* One `activation` frame per sequence, of the point b->s.at of the layer. */
MUST_CHECK int emit_activation(struct stream_writer *w, const struct model *m,
                               const struct batch *b, int64_t layer,
                               struct err *e);

#endif
