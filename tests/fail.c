/* fail.c - an LD_PRELOAD library: the n-th call of one kind fails, and no other.
 *
 *   FAIL=write:3 LD_PRELOAD=.../fail.so forge-grid ...
 *
 * Kinds: read, pread, write, pwrite (with their v variants; vmsplice is a
 * write), fsync, rename, malloc (malloc, calloc, realloc, posix_memalign,
 * aligned_alloc).
 *
 * FAIL_MARK: a file that is made when that call comes, and holds a byte then.
 *
 * Only calls made by the program itself count: the caller's return address
 * must lie in the main executable.  What libraries do with a failing malloc
 * is theirs; where our code gives them an allocator, that is ours. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);

static uintptr_t text_from, text_to; /* the main executable */
static const char *want, *mark;
static int left;

/* The first object is the program. */
static int find_program(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    (void)arg;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];

        if (p->p_type == PT_LOAD && p->p_flags & PF_X) {
            text_from = info->dlpi_addr + p->p_vaddr;
            text_to = text_from + p->p_memsz;
        }
    }
    return 1;
}

__attribute__((constructor)) static void setup(void)
{
    const char *fail = getenv("FAIL");
    const char *colon = fail ? strchr(fail, ':') : NULL;

    dl_iterate_phdr(find_program, NULL);
    if (colon) {
        left = atoi(colon + 1);
        want = fail;
        mark = getenv("FAIL_MARK");
    }
}

/* True on the call that must fail. */
static bool due(const char *kind, const void *caller)
{
    size_t n = strlen(kind);
    uintptr_t from = (uintptr_t)caller;

    if (!want || from < text_from || from >= text_to ||
        strncmp(want, kind, n) || want[n] != ':')
        return false;
    if (__atomic_sub_fetch(&left, 1, __ATOMIC_RELAXED))
        return false;
    if (mark) { /* not write(), which is ours */
        int fd = open(mark, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);

        if (ftruncate(fd, 1))
            abort();
        close(fd);
    }
    return true;
}

#define DUE(kind) due(kind, __builtin_return_address(0))
/* The function that ours stands before. */
#define REAL(name)                                                             \
    static __typeof__(name) *real;                                             \
    if (!real) {                                                               \
        void *p_ = dlsym(RTLD_NEXT, #name);                                    \
        memcpy(&real, &p_, sizeof(real));                                      \
    }

#define WRAP(kind, code, name, params, args)                                   \
    ssize_t name params                                                        \
    {                                                                          \
        REAL(name)                                                             \
        if (DUE(kind)) {                                                       \
            errno = code;                                                      \
            return -1;                                                         \
        }                                                                      \
        return real args;                                                      \
    }
#define WRAP_INT(kind, code, name, params, args)                               \
    int name params                                                            \
    {                                                                          \
        REAL(name)                                                             \
        if (DUE(kind)) {                                                       \
            errno = code;                                                      \
            return -1;                                                         \
        }                                                                      \
        return real args;                                                      \
    }

typedef const struct iovec *iov;

WRAP("read", EIO, read, (int fd, void *p, size_t n), (fd, p, n))
WRAP("read", EIO, readv, (int fd, iov v, int n), (fd, v, n))
WRAP("pread", EIO, pread, (int fd, void *p, size_t n, off_t o), (fd, p, n, o))
WRAP("pread", EIO, pread64, (int fd, void *p, size_t n, off_t o), (fd, p, n, o))
WRAP("pread", EIO, preadv, (int fd, iov v, int n, off_t o), (fd, v, n, o))
WRAP("pwrite", ENOSPC, pwrite, (int fd, const void *p, size_t n, off_t o),
     (fd, p, n, o))
WRAP("pwrite", ENOSPC, pwrite64, (int fd, const void *p, size_t n, off_t o),
     (fd, p, n, o))
WRAP("write", ENOSPC, writev, (int fd, iov v, int n), (fd, v, n))
WRAP_INT("fsync", EIO, fsync, (int fd), (fd))
WRAP_INT("fsync", EIO, fdatasync, (int fd), (fd))
WRAP_INT("rename", EIO, rename, (const char *a, const char *b), (a, b))
WRAP_INT("rename", EIO, renameat, (int d, const char *a, int e, const char *b),
         (d, a, e, b))

/* Messages go to 2, and a message about a failure must not fail too. */
ssize_t write(int fd, const void *p, size_t n)
{
    REAL(write)
    if (fd != 2 && DUE("write")) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, p, n);
}

/* Of nothing: only a question whether there is such a call. */
ssize_t vmsplice(int fd, iov v, size_t n, unsigned flags)
{
    REAL(vmsplice)
    if (n && DUE("write")) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, v, n, flags);
}

/* stdio's own buffer is written from within libc: its flush counts here. */
int fflush(FILE *f)
{
    REAL(fflush)
    if (DUE("write")) {
        errno = ENOSPC;
        return EOF;
    }
    return real(f);
}

void *malloc(size_t n)
{
    return DUE("malloc") ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return DUE("malloc") ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return DUE("malloc") ? NULL : __libc_realloc(p, n);
}

int posix_memalign(void **p, size_t align, size_t n)
{
    void *q = DUE("malloc") ? NULL : __libc_memalign(align, n);

    if (!q)
        return ENOMEM;
    *p = q;
    return 0;
}

void *aligned_alloc(size_t align, size_t n)
{
    return DUE("malloc") ? NULL : __libc_memalign(align, n);
}
