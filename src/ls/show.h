/* show.h - prints a tensor for forge-ls, as a line of columns or a JSON
 * object. */
#ifndef FORGE_SHOW_H
#define FORGE_SHOW_H

#include "common/io/stream.h"

/* Name, type, shape alone; with the first elements; with statistics; with a
 * histogram. */
enum show { SHOW_LINE, SHOW_HEAD, SHOW_STATS, SHOW_HISTOGRAM };

struct show_options {
    enum show what;
    bool json;
};

/* Print f on standard output.  path: the stream or checkpoint that f comes
 * from; shard: the checkpoint's file, NULL for a stream.  All but SHOW_LINE
 * need f->data.  E_TEMP.  Errors of writing are found by a later
 * fflush(stdout). */
MUST_CHECK int show_tensor(struct show_options o, const struct frame *f,
                           const char *path, const char *shard, struct err *e);

#endif
