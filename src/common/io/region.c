/* region.c - see region.h. */
#include "common/io/region.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/io/memory.h"

enum { STEP = 2 << 20, FILE_STEP = 8 << 20 };

static struct {
    pthread_once_t once;
    size_t most;      /* region_share() */
    atomic_size_t is; /* bytes of the files of all regions */
} files = { .once = PTHREAD_ONCE_INIT };

static struct {
    size_t most; /* region_keep() */
    atomic_size_t is;
} kept;

void region_keep(size_t bytes)
{
    kept.most = bytes;
}

static void learn(void)
{
    files.most = (size_t)(memory_available() / 4);
}

size_t region_share(void)
{
    pthread_once(&files.once, learn);
    return files.most;
}

bool region_fits(void)
{
    return atomic_load(&files.is) <= region_share();
}

void region_init(struct region *r, const char *dir)
{
    *r = (struct region){ .dir = dir };
}

/* Open a file without a name: O_TMPFILE, or a name that is removed at once. */
static int open_nameless(const char *dir)
{
    char path[PATH_MAX];
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0 || errno == ENOENT || errno == EACCES)
        return fd;
    if (snprintf(path, sizeof(path), "%s/forge.XXXXXX", dir) >=
        (int)sizeof(path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

/* Allocate the blocks now (posix_fallocate): a page that cannot be written
 * later would be SIGBUS. */
static int grow_file(struct region *r, size_t cap, struct err *e)
{
    size_t is = r->on_disk;
    int fd;

    if (!r->file) {
        fd = open_nameless(r->dir);
        if (fd < 0)
            return err_set(e, E_CREATE,
                           "cannot create a temporary file in '%s':", r->dir);
        r->file = fd + 1;
    }
    errno = posix_fallocate(r->file - 1, (off_t)is, (off_t)(cap - is));
    if (errno)
        return err_set(
            e, E_IO, "'%s': no room for a temporary file of %zu bytes:", r->dir,
            cap);
    atomic_fetch_add(&files.is, cap - is);
    r->on_disk = cap;
    return 0;
}

/* Whether cap bytes may be anonymous memory, which are then counted. */
static bool keep(struct region *r, size_t cap)
{
    size_t more = cap > REGION_MEMORY ? cap - r->kept : 0;

    if (atomic_fetch_add(&kept.is, more) + more > kept.most && more) {
        atomic_fetch_sub(&kept.is, more);
        return false;
    }
    r->kept += more;
    return true;
}

static void let_go(struct region *r)
{
    atomic_fetch_sub(&kept.is, r->kept);
    r->kept = 0;
}

static void *map(int file, size_t cap)
{
    int flags = file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *p =
        mmap(NULL, cap, PROT_READ | PROT_WRITE, flags, file ? file - 1 : -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static void *grow(const struct region *r, size_t cap)
{
    void *p;

    if (!r->p)
        return map(r->file, cap);
    p = mremap(r->p, r->cap, cap, MREMAP_MAYMOVE);
    return p == MAP_FAILED ? NULL : p;
}

/* From memory to a file, which copies. */
static void *leave_memory(struct region *r, size_t cap)
{
    void *p = map(r->file, cap);

    if (p && r->p) {
        memcpy(p, r->p, r->cap);
        munmap(r->p, r->cap);
    }
    return p;
}

/* Grow to cap bytes. */
static int move(struct region *r, size_t cap, struct err *e)
{
    bool memory = !r->file;
    void *p = memory && keep(r, cap) ? grow(r, cap) : NULL;

    if (!p && cap > REGION_MEMORY) {
        if (grow_file(r, cap, e) < 0)
            return e->code;
        let_go(r);
        p = memory ? leave_memory(r, cap) : grow(r, cap);
    }
    if (!p)
        return err_set(e, E_TEMP, "temporary memory: cannot allocate %zu bytes",
                       cap);
    if (!r->file)
        madvise(p, cap, MADV_HUGEPAGE);
    r->p = p;
    r->cap = cap;
    return 0;
}

int region_reserve(struct region *r, size_t bytes, struct err *e)
{
    size_t cap, more;

    if (r->p && bytes <= r->cap)
        return 0;
    /* grow by a quarter at least, so that appending copies little; a file, which
     * takes room that others may want, by FILE_STEP at most */
    if (!bytes)
        bytes = 1;
    more = r->cap / 4 < FILE_STEP ? r->cap / 4 : FILE_STEP;
    cap = bytes < r->cap + more ? r->cap + more : bytes;
    if (bytes <= REGION_MEMORY && cap > REGION_MEMORY)
        cap = REGION_MEMORY;
    return move(r, (cap + STEP - 1) / STEP * STEP, e);
}

void region_leave(const struct region *r, size_t at, size_t bytes)
{
    size_t page = 4096, first = (at + page - 1) / page * page;
    size_t end = (at + bytes) / page * page;

    if (r->file && end > first)
        madvise((char *)r->p + first, end - first, MADV_DONTNEED);
}

void region_release(struct region *r)
{
    if (r->p)
        munmap(r->p, r->cap);
    if (r->file)
        close(r->file - 1);
    atomic_fetch_sub(&files.is, r->on_disk);
    let_go(r);
    *r = (struct region){ 0 };
}
