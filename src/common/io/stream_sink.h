/* stream_sink.h - buffered output of a stream_writer: standard output or a
 * file. */
#ifndef FORGE_STREAM_SINK_H
#define FORGE_STREAM_SINK_H

#include "common/io/file.h"

/* State of an output. */
struct sink {
    int fd;              /* standard output, or -1 */
    struct publish *pub; /* the file being written, or NULL */
    const char *name;    /* for messages; the caller's pointer */
    uint8_t *buf;        /* buf[from, to) is not yet written */
    size_t from, to;
    void *region; /* the mapping that buf is part of; NULL: malloced */
    bool pipe;    /* fd is one */
    bool splices; /* output is a pipe, fed by vmsplice: each byte of buf is
                   * written once, see stream_sink.c */
    bool broken;  /* an error occurred; nothing more is written */
};

/* path NULL or "-": standard output.  E_CREATE; E_USAGE: a terminal; E_TEMP.
 * sink_drop() is due even after an error. */
MUST_CHECK int sink_open(struct sink *s, const char *path, struct err *e);
/* Append n bytes; they are copied or written.  E_IO. */
MUST_CHECK int sink_put(struct sink *s, const void *data, size_t n,
                        struct err *e);
/* Append n bytes that the caller leaves unchanged until the reader of the pipe
 * has consumed them: the pipe refers to them without a copy.  E_IO. */
MUST_CHECK int sink_lend(struct sink *s, const void *data, size_t n,
                         struct err *e);
/* As publish_reader() and publish_there(); -1, 0: no file. */
int sink_reader(const struct sink *s);
uint64_t sink_there(const struct sink *s);
/* Write out what is buffered.  E_IO. */
MUST_CHECK int sink_flush(struct sink *s, struct err *e);
/* Flush; truncate a file behind the last byte and publish it.  E_IO. */
MUST_CHECK int sink_finish(struct sink *s, struct err *e);
/* Free what s holds; a file that was not finished is removed. */
void sink_drop(struct sink *s);

#endif
