/* fake_loan.c - blocks of the fake device that processes lend to each other: memory
 * files, mapped through /proc.
 *
 * FAKE_CUDA_MAP=no: another process's block cannot be mapped; FAKE_CUDA_BLOCK=no:
 * there are no blocks. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base.h"
#include "device/device.h"
#include "fake_cuda.h"
#include "fake_loan.h"

/* What a handle says. */
struct handle {
    int32_t pid, fd;
    uint64_t n;
};

static struct block {
    struct block *next;
    char *p;
    struct handle of;
    bool ours;
} * blocks;

static struct block *find(const void *p)
{
    struct block *b = blocks;

    while (b && b->p != p)
        b = b->next;
    return b;
}

bool fake_is_block(const void *p, size_t n)
{
    const char *first = p;

    for (const struct block *b = blocks; b; b = b->next)
        if (first >= b->p && first + n <= b->p + b->of.n)
            return true;
    return false;
}

void fake_wait(const char *what)
{
    const char *path = getenv("FAKE_CUDA_WAIT");
    const char *only = getenv("FAKE_CUDA_WAIT_FOR");
    char here[4096];
    FILE *f;

    if (!path || (only && strcmp(only, what)))
        return;
    snprintf(here, sizeof(here), "%s.here", path);
    f = fopen(here, "w");
    if (f)
        fclose(f);
    while (access(path, F_OK))
        usleep(1000);
}

static int add(const struct handle *h, int fd, bool ours, const void **p,
               struct err *e)
{
    struct block *b = calloc(1, sizeof(*b));
    void *at = mmap(NULL, h->n, ours ? PROT_READ | PROT_WRITE : PROT_READ,
                    MAP_SHARED, fd, 0);

    if (!b || at == MAP_FAILED) {
        free(b);
        return err_set(e, E_TEMP, "fake: out of memory");
    }
    *b = (struct block){ blocks, at, *h, ours };
    blocks = b;
    *p = at;
    return 0;
}

int fake_block(struct cuda_context *c, void **p, size_t n, struct err *e)
{
    struct handle h = { .pid = getpid(), .n = n };
    const void *at;

    *p = NULL;
    if (getenv("FAKE_CUDA_BLOCK") || (c->memory && n > c->memory))
        return err_set(e, E_TEMP, "fake: out of memory");
    h.fd = memfd_create("fake", MFD_CLOEXEC);
    if (h.fd < 0 || ftruncate(h.fd, (off_t)n))
        return err_set(e, E_TEMP, "fake: out of memory");
    if (add(&h, h.fd, true, &at, e) < 0)
        return e->code;
    *p = (void *)(uintptr_t)at;
    return 0;
}

void fake_drop(struct cuda_context *c, void *p)
{
    struct block **at = &blocks, *b = find(p);

    (void)c;
    if (!b)
        return;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    munmap(b->p, b->of.n);
    close(b->of.fd);
    free(b);
}

int fake_handle(struct cuda_context *c, const void *block,
                uint8_t handle[DEVICE_HANDLE], struct err *e)
{
    const struct block *b = find(block);

    (void)c;
    memset(handle, 0, DEVICE_HANDLE);
    if (!b || !b->ours)
        return err_set(e, E_DEVICE, "fake: no block");
    memcpy(handle, &b->of, sizeof(b->of));
    return 0;
}

int fake_map(struct cuda_context *c, const uint8_t handle[DEVICE_HANDLE],
             const void **p, struct err *e)
{
    struct handle h;
    char path[64];
    int fd, rc;

    (void)c;
    memcpy(&h, handle, sizeof(h));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", h.pid, h.fd);
    fd = getenv("FAKE_CUDA_MAP") ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, E_DEVICE, "fake: cannot map");
    rc = add(&h, fd, false, p, e);
    close(fd);
    fake_note("map", 1, h.n, 1);
    return rc;
}

int fake_fetch(struct cuda_context *c, void *host, const void *from, size_t n,
               struct err *e)
{
    (void)c;
    if (!fake_owned(from, n))
        return err_set(e, E_BUG, "fake: fetch: not memory of the device");
    if (n > 8) /* no trial */
        fake_wait("fetch");
    memcpy(host, from, n);
    fake_note("fetch", 1, n, 1);
    return 0;
}

int fake_settle(struct cuda_context *c, struct err *e)
{
    (void)c;
    (void)e;
    return 0;
}
