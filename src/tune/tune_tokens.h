/* tune_tokens.h - the token sequences that a model is tuned on. */
#ifndef FORGE_TUNE_TOKENS_H
#define FORGE_TUNE_TOKENS_H

#include "model/model.h"

struct stream_writer; /* common/io/stream.h */

/* Sequence i is ids[start[i]..start[i + 1] - 1]. */
struct tune_tokens {
    int32_t *ids;
    int64_t *start; /* [count + 1] */
    int64_t count, longest;
};

/* Append the token frames of a file; zero-initialise *s, and tune_tokens_release() it.
 * key: required in its HEAD, NULL: any.  out: gets the programs in its HEAD.  E_DATA: a
 * frame is not I32 [n], a token is not in m's vocabulary, or there is no token. */
MUST_CHECK int tune_tokens_read(struct tune_tokens *s, const char *path,
                                const char *key, const struct model *m,
                                struct stream_writer *out, struct err *e);
void tune_tokens_release(struct tune_tokens *s);
/* order[count]: all of them, shuffled by the number of the round and a seed. */
void tune_tokens_shuffle(const struct tune_tokens *s, uint64_t seed,
                         uint64_t round, int64_t *order);

#endif
