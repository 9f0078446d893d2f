/* verify.h - is a GGUF file what forge-gguf wrote? */
#ifndef FORGE_GGUF_VERIFY_H
#define FORGE_GGUF_VERIFY_H

#include "common/cli/progress.h"

struct gguf_verdict {
    uint64_t tensors, wrong; /* wrong: tensors, or the head, that differ, and
                              * what is behind the last tensor */
};

/* Compare every byte with the digests in the file; say() is called with each
 * part that differs.  E_DATA: no GGUF file, cut, or one without digests
 * (DIGESTS_KEY); E_NOINPUT, E_IO, E_TEMP. */
MUST_CHECK int gguf_verify(const char *path,
                           void (*say)(const char *path, const char *what),
                           struct progress *progress, struct gguf_verdict *v,
                           struct err *e);

#endif
