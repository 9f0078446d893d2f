/* show.h - how forge-ls prints a tensor: a line, or a JSON object. */
#ifndef FORGE_SHOW_H
#define FORGE_SHOW_H

#include "common/io/stream.h"

enum show { SHOW_LINE, SHOW_HEAD, SHOW_STATS, SHOW_HISTOGRAM };

struct show_options {
    enum show what;
    bool json;
};

/* Print f, which comes from `path` and, of a checkpoint, its file `shard`
 * (else NULL), on standard output.  All but SHOW_LINE need f->data.  E_TEMP;
 * a failed write is left to fflush(stdout). */
MUST_CHECK int show_tensor(struct show_options o, const struct frame *f,
                           const char *path, const char *shard, struct err *e);

#endif
