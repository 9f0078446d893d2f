/* runstream.h - reads, from a stream of tokens, codes or Hessians, what it says
 * about the run that made it: notes of modules, hit maps, HEAD. */
#ifndef FORGE_RUNSTREAM_H
#define FORGE_RUNSTREAM_H

#include "arch/hitmap.h"
#include "work/records.h"

/* Number of `tokens` frames, and of their tokens. */
struct tally {
    uint64_t sequences, tokens;
};

/* Where the results go. */
struct runstream {
    struct records *records; /* notes of modules are added; NULL: not wanted */
    struct hitmaps *hits;    /* hit maps are added; NULL: not wanted */
    struct tally *tokens;    /* added to; NULL: not wanted */
    char **head; /* if *head is NULL, it becomes the text of HEAD, free() it;
                    NULL: not wanted */
};

/* Other payloads are not read.  E_DATA: a damaged stream, a note that is no
 * JSON object, a wrong hit map; E_NOINPUT; E_TEMP. */
MUST_CHECK int runstream_read(const struct runstream *s, const char *path,
                              struct err *e);

#endif
