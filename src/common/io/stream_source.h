/* stream_source.h - buffered input of a stream_reader: a pipe or a regular
 * file. */
#ifndef FORGE_STREAM_SOURCE_H
#define FORGE_STREAM_SOURCE_H

#include "common/io/file.h"

/* State of an input. */
struct source {
    struct file *file; /* regular file, else NULL */
    int fd;            /* pipe, socket or device */
    const char *name;  /* for messages */
    uint64_t at;       /* offset in the input of the next byte to hand out */
    uint8_t *window;   /* buffer; window[from, to) has been read in advance */
    size_t from, to;
    /* Called before a read that would block; NULL: none. */
    int (*idle)(void *arg, struct err *e);
    void *idle_arg;
};

/* path NULL or "-": standard input.  E_NOINPUT; E_USAGE: a terminal; E_TEMP. */
MUST_CHECK int source_open(struct source *s, const char *path, struct err *e);
/* The same for an open descriptor, which belongs to s from the call on.  name:
 * kept as a pointer. */
MUST_CHECK int source_from_fd(struct source *s, int fd, const char *name,
                              struct err *e);
/* Read exactly n bytes.  E_DATA "input ends early": *got (may be NULL) tells
 * how many there were; E_IO. */
MUST_CHECK int source_read(struct source *s, void *buf, size_t n, size_t *got,
                           struct err *e);
/* Block until a byte, or the end, can be read: true; or until only descriptor
 * `other` is readable: false. */
bool source_wait(struct source *s, int other);
/* Skip n bytes of a regular file.  E_DATA: it is shorter. */
MUST_CHECK int source_skip(struct source *s, uint64_t n, struct err *e);
/* Bytes left in a regular file; 0 for others. */
uint64_t source_left(const struct source *s);
void source_close(struct source *s);

#endif
