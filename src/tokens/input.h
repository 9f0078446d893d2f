/* input.h - a window on the bytes of a file or pipe, which is read only as far
 * as needed. */
#ifndef FORGE_INPUT_H
#define FORGE_INPUT_H

#include "common/io/sha256.h"

struct input {
    int fd;
    const char *name; /* for messages, unquoted: the path, or "<stdin>" */
    char *data;       /* the window: [len] bytes read and not dropped */
    size_t len, cap;
    uint64_t at;           /* offset of data[0] in the input */
    bool ended;            /* data is all that is left */
    struct sha256 *digest; /* of all bytes read; set by the caller, closed by
                              input_close(); NULL: not wanted */
};

/* path NULL or "-": standard input.  E_NOINPUT: cannot be opened, or a
 * directory. */
MUST_CHECK int input_open(struct input *s, const char *path, struct err *e);
void input_close(struct input *s);
/* Read until data holds at least n bytes or the input has ended; may move data.
 * E_IO, E_TEMP. */
MUST_CHECK int input_fill(struct input *s, size_t n, struct err *e);
/* Drop the first n <= len bytes of the window. */
void input_drop(struct input *s, size_t n);
/* Read and ignore the rest: of a pipe, because its writer would otherwise die
 * of SIGPIPE, which a shell with pipefail reports as an error; of a file only
 * for its digest. */
void input_drain(struct input *s);

#endif
