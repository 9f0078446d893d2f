/* stream_sink.h - the bytes under a stream_writer: a pipe, a file or else. */
#ifndef FORGE_STREAM_SINK_H
#define FORGE_STREAM_SINK_H

#include "common/io/file.h"

struct sink {
    int fd;              /* standard output, or */
    struct publish *pub; /* a file */
    const char *name;    /* for messages; lives as long as the caller's path */
    uint8_t *buf;        /* bytes [from, to) of it are not yet written */
    size_t from, to;
    void *region; /* what buf lies in when it came from mmap */
    bool gives;   /* a pipe, and bytes of buf are written once: see the .c */
    bool broken;  /* after an error */
};

/* path NULL or "-": standard output.  E_CREATE, E_USAGE for a terminal,
 * E_TEMP.  sink_drop() is due in any case. */
MUST_CHECK int sink_open(struct sink *s, const char *path, struct err *e);
/* Append n bytes, which may wait in the buffer.  E_IO. */
MUST_CHECK int sink_put(struct sink *s, const void *data, size_t n,
                        struct err *e);
/* The same of memory that stays as it is until the reader has taken it in: a
 * pipe then refers to it. */
MUST_CHECK int sink_lend(struct sink *s, const void *data, size_t n,
                         struct err *e);
/* All that was put is on its way to the reader.  E_IO. */
MUST_CHECK int sink_flush(struct sink *s, struct err *e);
/* The last byte was put: flush; a file is cut here and gets its name. */
MUST_CHECK int sink_finish(struct sink *s, struct err *e);
/* Free what s holds; a file that was not finished is removed. */
void sink_drop(struct sink *s);

#endif
