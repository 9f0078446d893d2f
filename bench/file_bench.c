/* file_bench - cold reads through file.c against the drive itself.
 *
 *   file_bench [DIR] [MIB]      a file of MIB (default 1024) is made in DIR
 *
 * The ceiling is measured in the same run: O_DIRECT preads of 1 MiB by 16
 * threads, nothing else.  The bytes are compared first.  Bar: 95 %. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/file.h"

enum { CHUNK = 1 << 20, THREADS = 16, ROUNDS = 5 };

static struct err e;
static size_t total;
static char path[4096];
static size_t next_chunk;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void drop(void)
{
    int fd = open(path, O_RDONLY);

    if (fd < 0 || fdatasync(fd) ||
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) || close(fd))
        die(E_IO, "cannot drop the cache of '%s'", path);
}

static uint64_t pattern(uint64_t i)
{
    return (i + 1) * 0x9e3779b97f4a7c15u;
}

static void make(uint64_t *buf)
{
    struct publish *p;

    for (size_t i = 0; i < total / 8; i++)
        buf[i] = pattern(i);
    if (publish_create(&p, path, &e) < 0 ||
        publish_write(p, buf, total, &e) < 0 || publish_commit(p, &e) < 0)
        die_err(&e);
}

static void *raw_reader(void *arg)
{
    char *buf = mem_pages(CHUNK, "raw", &e);
    int fd = open(path, O_RDONLY | O_DIRECT);
    size_t at;

    (void)arg;
    while ((at = __atomic_fetch_add(&next_chunk, CHUNK, __ATOMIC_RELAXED)) <
           total)
        if (fd < 0 || pread(fd, buf, CHUNK, (off_t)at) != CHUNK)
            die(E_IO, "O_DIRECT does not work in '%s'", path);
    close(fd);
    free(buf);
    return NULL;
}

static double raw(void)
{
    pthread_t t[THREADS];
    double from;

    drop();
    next_chunk = 0;
    from = now();
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&t[i], NULL, raw_reader, NULL))
            die(E_TEMP, "no thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    return (double)total / (now() - from) * 1e-9;
}

static double ours(uint64_t *buf, size_t shift)
{
    struct file *f;
    double from;

    drop();
    from = now();
    if (file_open(&f, AT_FDCWD, path, &e) < 0 ||
        file_read(f, buf, total - shift, shift, &e) < 0)
        die_err(&e);
    from = now() - from;
    file_close(f);
    for (size_t i = 0; !shift && i < total / 8; i++)
        if (buf[i] != pattern(i))
            die(E_BUG, "wrong bytes at %zu", 8 * i);
    return (double)(total - shift) / from * 1e-9;
}

int main(int argc, char **argv)
{
    double best[3] = { 0 };
    uint64_t *buf;

    base_init(argv[0]);
    snprintf(path, sizeof(path), "%s/forge-file-bench",
             argc > 1 ? argv[1] : ".");
    total = (size_t)(argc > 2 ? atoi(argv[2]) : 1024) << 20;
    buf = mem_pages(total, "file_bench", &e);
    if (!buf)
        die_err(&e);
    make(buf);
    for (int i = 0; i < ROUNDS; i++) { /* in turn: the drive's rate wanders */
        double r[3] = { raw(), ours(buf, 0), ours(buf, 100) };

        for (int k = 0; k < 3; k++)
            if (r[k] > best[k])
                best[k] = r[k];
    }
    unlink(path);
    printf("cold read of %zu MiB, best of %d\n", total >> 20, ROUNDS);
    printf("  the drive (16 threads, O_DIRECT)  %6.2f GB/s\n", best[0]);
    printf("  file_read, aligned                %6.2f GB/s  %5.1f %%\n",
           best[1], best[1] / best[0] * 100);
    printf("  file_read, at offset 100          %6.2f GB/s  %5.1f %%\n",
           best[2], best[2] / best[0] * 100);
    return 0;
}
