/* disk.h - whether a disk has room for what will be written there. */
#ifndef FORGE_DISK_H
#define FORGE_DISK_H

#include <sys/types.h>

#include "common/base.h"

struct disk {
    dev_t id;
    double is; /* free bytes */
};

/* Bytes that will be written below a path; 0 or less: none. */
struct disk_claim {
    const char *given, *path;
    double need;
};

/* The disk that has, or will have, c->path.  E_IO. */
MUST_CHECK int disk_find(const struct disk_claim *c, struct disk *d,
                         struct err *e);
/* E_IO: not enough free disk space for one claim. */
MUST_CHECK int disk_check(const struct disk_claim *c, struct err *e);

/* Least bytes that forge-shard takes for `bytes` of tensors, of which `piped` come through
 * its input: that is a file until their shard is written, and all of it if there is one. */
static inline double disk_shards(double bytes, double piped, double shard_size)
{
    return bytes + (piped <= shard_size ? piped : 0);
}

#endif
