/* runstream.h - what a stream of codes or Hessians says about the run that made
 * it: the notes of its modules, and its hit maps. */
#ifndef FORGE_RUNSTREAM_H
#define FORGE_RUNSTREAM_H

#include "arch/hitmap.h"
#include "work/records.h"

/* Of `tokens` frames: how many, and their tokens. */
struct tally {
    uint64_t sequences, tokens;
};

struct runstream {
    struct records *records; /* modules' notes are added; NULL: not wanted */
    struct hitmaps *hits;
    struct tally *tokens; /* NULL: not wanted */
    char **head; /* gets the text of HEAD if it is NULL; NULL: not wanted */
};

/* Payloads other than those are not read.  E_DATA: a damaged stream, a note
 * that is no JSON object, a wrong hit map; E_NOINPUT. */
MUST_CHECK int runstream_read(const struct runstream *s, const char *path,
                              struct err *e);

#endif
