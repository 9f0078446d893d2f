/* file_bench - cold reads through file.c against the drive itself.
 *
 *   file_bench [DIR] [MIB]      a file of MIB (default 1024) is made in DIR
 *
 * The ceiling is measured in the same run, as fio would: O_DIRECT through
 * io_uring into a few buffers used over and over, nothing else done with the
 * bytes, at each of the queue depths and block sizes below.  Ours and raw take
 * turns, as the drive's rate wanders; the best of each counts.  The bytes of
 * ours are compared.  Bar: 95 %. */
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/io/file.h"

enum { ROUNDS = 3, DEPTH_MAX = 64, BLOCK_MAX = 4 << 20 };
static const unsigned depths[] = { 4, 16, 64 };
static const unsigned blocks[] = { 256 << 10, 1 << 20, 4 << 20 };

static struct err e;
static size_t total;
static char path[4096];
static char *slots; /* DEPTH_MAX blocks for the raw reader */

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

/* GB/s of `depth` reads of `block` bytes in flight. */
static double raw(unsigned depth, unsigned block)
{
    struct io_uring ring;
    struct io_uring_cqe *cqe;
    size_t next = 0, done = 0;
    double from;
    int fd;

    drop();
    fd = open(path, O_RDONLY | O_DIRECT);
    if (fd < 0 || io_uring_queue_init(depth, &ring, 0) < 0)
        die(E_IO, "no O_DIRECT or no io_uring in '%s'", path);
    from = now();
    for (size_t i = 0; done < total; i++) {
        char *slot;

        if (i < depth) { /* fill the queue, then go on with what comes back */
            slot = slots + i * block;
        } else {
            if (io_uring_submit_and_wait(&ring, 1) < 0 ||
                io_uring_peek_cqe(&ring, &cqe) < 0 || cqe->res <= 0)
                die(E_IO, "cannot read '%s'", path);
            slot = io_uring_cqe_get_data(cqe);
            done += (size_t)cqe->res;
            io_uring_cqe_seen(&ring, cqe);
        }
        if (next < total) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

            io_uring_prep_read(sqe, fd, slot, block, next);
            io_uring_sqe_set_data(sqe, slot);
            next += block;
        }
    }
    from = now() - from;
    io_uring_queue_exit(&ring);
    close(fd);
    return (double)total / from * 1e-9;
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

static void keep(double *best, double r)
{
    if (r > *best)
        *best = r;
}

static void print(double (*best)[ARRAY_LEN(blocks)], double aligned, double odd)
{
    double top = 0;

    printf("cold read of %zu MiB, GB/s, best of %d\n", total >> 20, ROUNDS);
    for (size_t d = 0; d < ARRAY_LEN(depths); d++) {
        printf("  the drive, %2u in flight, by KiB ", depths[d]);
        for (size_t b = 0; b < ARRAY_LEN(blocks); b++) {
            printf("  %u: %5.2f", blocks[b] >> 10, best[d][b]);
            keep(&top, best[d][b]);
        }
        putchar('\n');
    }
    printf("  file_read, aligned                %6.2f  %5.1f %%\n", aligned,
           aligned / top * 100);
    printf("  file_read, at offset 100          %6.2f  %5.1f %%\n", odd,
           odd / top * 100);
}

int main(int argc, char **argv)
{
    double best[ARRAY_LEN(depths)][ARRAY_LEN(blocks)] = { 0 };
    double aligned = 0, odd = 0;
    uint64_t *buf;

    base_init(argv[0]);
    snprintf(path, sizeof(path), "%s/forge-file-bench",
             argc > 1 ? argv[1] : ".");
    total = (size_t)(argc > 2 ? atoi(argv[2]) : 1024) << 20;
    buf = mem_pages(total, "file_bench", &e);
    slots = mem_pages((size_t)DEPTH_MAX * BLOCK_MAX, "file_bench", &e);
    if (!buf || !slots)
        die_err(&e);
    memset(slots, 1, (size_t)DEPTH_MAX * BLOCK_MAX);
    make(buf);
    for (int i = 0; i < ROUNDS; i++)
        for (size_t d = 0; d < ARRAY_LEN(depths); d++)
            for (size_t b = 0; b < ARRAY_LEN(blocks); b++) {
                keep(&best[d][b], raw(depths[d], blocks[b]));
                keep(&odd, ours(buf, 100));
                keep(&aligned, ours(buf, 0));
            }
    unlink(path);
    print(best, aligned, odd);
    return 0;
}
