/* upstream.h - the line by which a writer of JSON lines says that it failed.
 *
 * {"error":"MESSAGE","exit":STATUS}: what came before is cut short.  forge-text(1)
 * writes it; it is to text what an ERROR frame is to a stream. */
#ifndef FORGE_UPSTREAM_H
#define FORGE_UPSTREAM_H

#include "common/io/json.h"

/* 0: the record is no such line; else *e has its message, and its status as the
 * code (E_DATA where that is none of 64 to 78).  fd: what the record was read from;
 * of a pipe, the writer prints the message (e->told). */
MUST_CHECK int upstream_error(const struct json *record, int fd, struct err *e);

enum { UPSTREAM_MAX = 4096 }; /* bytes of such a line */

/* Looks for the line in text that goes by in pieces of any size;
 * zero-initialised. */
struct upstream {
    int fd;     /* where the text is read */
    bool lines; /* its first character is '{': it is JSON lines */
    bool begun; /* a character other than a blank was there */
    size_t len; /* of the line so far; above UPSTREAM_MAX: too long */
    char line[UPSTREAM_MAX];
};

/* The next n bytes; n = 0: the text has ended.  0, or as upstream_error();
 * E_TEMP. */
MUST_CHECK int upstream_watch(struct upstream *u, const char *text, size_t n,
                              struct err *e);

#endif
