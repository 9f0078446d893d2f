/* input.h - bytes of a file or pipe, read only as far as they are needed. */
#ifndef FORGE_INPUT_H
#define FORGE_INPUT_H

#include "common/io/sha256.h"

struct input {
    int fd;
    const char *name; /* for messages, quoted already */
    char *data;       /* what has been read and not dropped */
    size_t len, cap;
    uint64_t at;           /* offset of data in the input */
    bool ended;            /* nothing follows data */
    struct sha256 *digest; /* of all that was read; NULL: not wanted */
};

/* path NULL or "-": standard input.  E_NOINPUT: cannot be opened. */
MUST_CHECK int input_open(struct input *s, const char *path, struct err *e);
void input_close(struct input *s);
/* Read until data holds n bytes or the input has ended.  E_IO. */
MUST_CHECK int input_fill(struct input *s, size_t n, struct err *e);
void input_drop(struct input *s, size_t n);
/* Read and forget what is left: of a pipe, since the program that writes it
 * would else die of SIGPIPE, and a shell with pipefail would call that an error;
 * of a file where its digest is wanted. */
void input_drain(struct input *s);

#endif
