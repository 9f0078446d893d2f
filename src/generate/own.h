/* own.h - sequences that a model writes itself, from their first token on. */
#ifndef FORGE_OWN_H
#define FORGE_OWN_H

#include "common/io/stream.h"
#include "generate/generate.h"
#include "generate/settings.h"

/* `count` sequences of `tokens` tokens, drawn at temperature 1 from all but those that
 * end a text.  They begin with settings->first, or if that is -1 with any.  A sequence
 * depends on the seed and its number alone. */
struct own {
    struct generator *g;
    const struct generate_settings *settings;
    struct progress *progress;
    int64_t count, tokens;
    uint64_t seed;
};
/* Write them as forge-tokens does.  Errors of generator_begin_several(), of writing. */
MUST_CHECK int own_write(const struct own *o, struct stream_writer *out,
                         struct err *e);

#endif
