/* region.h - memory for rows of all sequences, as large as the disk.
 *
 * Up to REGION_MEMORY it is ordinary memory; beyond, pages of a file without a
 * name, which the kernel may write out and which vanish with the process. */
#ifndef FORGE_REGION_H
#define FORGE_REGION_H

#include "common/base.h"

enum { REGION_MEMORY = 128 << 20 };

struct region {
    const char *dir; /* where the file would lie */
    void *p;         /* moves when it grows */
    size_t cap;      /* a multiple of the page size */
    int file;        /* descriptor + 1; 0: ordinary memory */
};

/* dir must outlive r. */
void region_init(struct region *r, const char *dir);
/* At least `bytes` (p is not NULL then, also for 0), what was there is kept,
 * what is new is zero.  E_CREATE: no file in dir; E_IO: no room for it; E_TEMP:
 * no memory. */
MUST_CHECK int region_reserve(struct region *r, size_t bytes, struct err *e);
/* [at, at + bytes) is not needed for a while: it need not stay in memory. */
void region_leave(const struct region *r, size_t at, size_t bytes);
void region_release(struct region *r); /* zeroed is allowed */

#endif
