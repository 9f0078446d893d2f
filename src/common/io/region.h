/* region.h - growing memory for rows of all sequences, backed by a file if
 * large.
 *
 * Up to REGION_MEMORY bytes it is anonymous memory; beyond, and beyond what
 * region_keep() allows, a shared mapping of an unnamed temporary file, so the kernel may
 * write pages out instead of keeping them.  The file vanishes with the process. */
#ifndef FORGE_REGION_H
#define FORGE_REGION_H

#include "common/base.h"

enum { REGION_MEMORY = 128 << 20 };

/* Growing memory; p and cap are for the caller to read. */
struct region {
    const char *dir; /* directory of the temporary file */
    void *p;         /* start of the memory; changes when it grows */
    size_t cap;      /* a multiple of the page size */
    int file;        /* descriptor + 1; 0: anonymous memory */
    size_t on_disk;  /* bytes of the file */
    size_t kept;     /* bytes that region_keep() is asked for */
};

/* Let the process's regions of more than REGION_MEMORY have so many bytes of anonymous
 * memory together; 0 at first.  Many threads that write new pages of a file wait for each
 * other: 50 us for each page and thread, 16 threads. */
void region_keep(size_t bytes);

/* Empty, allocates nothing.  dir is kept as a pointer. */
void region_init(struct region *r, const char *dir);
/* Make r->p at least `bytes` long (not NULL even for 0); contents are kept,
 * new bytes are zero.  E_CREATE: no file can be made in dir; E_IO: the disk
 * has no space for it; E_TEMP: no memory. */
MUST_CHECK int region_reserve(struct region *r, size_t bytes, struct err *e);
/* Hint: [at, at + bytes) is not needed soon; its pages may leave memory. */
void region_leave(const struct region *r, size_t at, size_t bytes);
/* A quarter of the memory that is available (memory.h) when it is first called; 0: not
 * known.  While all files of a process have at most so many bytes (region_fits()), what is
 * used in turn, again and again, needs no region_leave(): a page that is mapped again costs
 * 10 us, and the kernel keeps it in its cache until it needs memory, mapped or not. */
size_t region_share(void);
bool region_fits(void);
void region_release(struct region *r); /* zeroed is allowed */

#endif
