/* spill.h - a temporary file without a name, gone when the process is. */
#ifndef FORGE_SPILL_H
#define FORGE_SPILL_H

#include "common/base.h"

struct spill {
    int fd;
    const char *dir; /* for messages */
};

/* E_CREATE when dir takes no file. */
MUST_CHECK int spill_open(struct spill *s, const char *dir, struct err *e);
/* Exactly n bytes at off.  E_IO. */
MUST_CHECK int spill_write(struct spill *s, const void *buf, size_t n,
                           uint64_t off, struct err *e);
MUST_CHECK int spill_read(struct spill *s, void *buf, size_t n, uint64_t off,
                          struct err *e);
void spill_close(struct spill *s);

#endif
