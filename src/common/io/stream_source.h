/* stream_source.h - the bytes under a stream_reader: a pipe or a file. */
#ifndef FORGE_STREAM_SOURCE_H
#define FORGE_STREAM_SOURCE_H

#include "common/io/file.h"

struct source {
    struct file *file; /* regular files */
    int fd;            /* pipes, sockets, devices */
    const char *name;  /* for messages */
    uint64_t at;       /* bytes handed out, or the place in the file */
    uint8_t *window;   /* read ahead: bytes from `from` to `to` */
    size_t from, to;
    /* Called before a read that would wait; NULL: nothing to do. */
    int (*idle)(void *arg, struct err *e);
    void *idle_arg;
};

/* path NULL or "-": standard input.  E_NOINPUT, E_USAGE for a terminal. */
MUST_CHECK int source_open(struct source *s, const char *path, struct err *e);
/* The same of an open descriptor, which belongs to s from here on. */
MUST_CHECK int source_from_fd(struct source *s, int fd, const char *name,
                              struct err *e);
/* Exactly n bytes; 0, E_IO, or E_DATA "input ends early".  *got (may be NULL)
 * says how many there were. */
MUST_CHECK int source_read(struct source *s, void *buf, size_t n, size_t *got,
                           struct err *e);
/* Wait until there is a byte to read, or the end: true; or until the descriptor
 * `other` can be read: false, if only that. */
bool source_wait(struct source *s, int other);
/* Pass over n bytes of a regular file.  E_DATA when it is shorter. */
MUST_CHECK int source_skip(struct source *s, uint64_t n, struct err *e);
/* Bytes that are known to be left: of a pipe 0. */
uint64_t source_left(const struct source *s);
void source_close(struct source *s);

#endif
