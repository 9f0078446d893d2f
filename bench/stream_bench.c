/* stream_bench - one process writes tensors, another reads them, by a pipe.
 *
 *   stream_bench [MIB of a tensor] [tensors]      default 64 MiB, 64 of them
 *
 * Every payload is hashed on both sides and compared; the first run checks the
 * values too.  In the same run, the same bytes with no hashing: by write(2) and
 * read(2) of 256 KiB, and, as the ceiling, lent to the pipe by vmsplice(2) with
 * no copy by the writer (who could never change them) and read.  Bar: 4 GB/s. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/io/stream.h"

enum { ROUNDS = 5, CHUNK = 256 << 10 };

static struct err e;
static size_t size, count;
static uint32_t *data;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void write_stream(void)
{
    struct frame f = { .role = ROLE_TENSOR,
                       .dtype = DT_U32,
                       .ndim = 1,
                       .dims = { size / 4 },
                       .data = data,
                       .len = size };
    struct stream_writer *w;

    if (stream_create(&w, &(struct stream_output){ .path = NULL }, &e) < 0)
        die_err(&e);
    for (size_t i = 0; i < count; i++) {
        snprintf(f.name, sizeof(f.name), "tensor.%zu", i);
        if (stream_write(w, &f, &e) < 0)
            die_err(&e);
    }
    if (stream_finish(w, &e) < 0)
        die_err(&e);
}

static void read_stream(bool check)
{
    struct stream_reader *r;
    struct frame f;
    int rc;

    if (stream_open(&r, NULL, NULL, &e) < 0)
        die_err(&e);
    while ((rc = stream_next(r, &f, &e)) > 0)
        if (check && (f.len != size || memcmp(f.data, data, size)))
            die(E_BUG, "'%s' arrived changed", f.name);
    if (rc < 0)
        die_err(&e);
    stream_close(r);
}

static void write_raw(void)
{
    fcntl(1, F_SETPIPE_SZ, 1 << 20);
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < size; at += CHUNK)
            if (write(1, (char *)data + at, CHUNK) != CHUNK)
                die(E_IO, "pipe");
}

static void lend_raw(void)
{
    fcntl(1, F_SETPIPE_SZ, 1 << 20);
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < size;) {
            struct iovec v = { (char *)data + at, size - at };
            ssize_t k = vmsplice(1, &v, 1, 0);

            if (k <= 0)
                die(E_IO, "pipe");
            at += (size_t)k;
        }
}

static void read_raw(void)
{
    char *buf = mem_pages(size, "buffer", &e);
    size_t at = 0;
    ssize_t k;

    if (!buf)
        die_err(&e);
    while ((k = read(0, buf + at, size - at < CHUNK ? size - at : CHUNK)) > 0)
        at = (at + (size_t)k) % size;
    free(buf);
}

enum way { RAW, LENT, STREAM, STREAM_CHECKED, WAYS };

static void write_end(enum way way)
{
    if (way == RAW)
        write_raw();
    else if (way == LENT)
        lend_raw();
    else
        write_stream();
}

/* Seconds until both ends are done. */
static double run(enum way way)
{
    int ends[2], status = 0, failed = 0;
    double from = now();
    pid_t child[2];

    if (pipe(ends))
        die(E_IO, "no pipe");
    for (int i = 0; i < 2; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            dup2(ends[i], i);
            close(ends[0]);
            close(ends[1]);
            if (i)
                write_end(way);
            else if (way < STREAM)
                read_raw();
            else
                read_stream(way == STREAM_CHECKED);
            _exit(0);
        }
    }
    close(ends[0]);
    close(ends[1]);
    for (int i = 0; i < 2; i++) {
        waitpid(child[i], &status, 0);
        failed |= status;
    }
    if (failed)
        die(E_BUG, "one end failed");
    return now() - from;
}

int main(int argc, char **argv)
{
    double best[WAYS] = { 1e9, 1e9, 1e9 }, gb;

    base_init(argv[0]);
    size = (size_t)(argc > 1 ? atoi(argv[1]) : 64) << 20;
    count = (size_t)(argc > 2 ? atoi(argv[2]) : 64);
    data = mem_pages(size, "data", &e);
    if (!data)
        die_err(&e);
    for (size_t i = 0; i < size / 4; i++)
        data[i] = (uint32_t)(i * 2654435761u);
    (void)run(STREAM_CHECKED);
    for (int i = 0; i < ROUNDS; i++)
        for (enum way k = RAW; k <= STREAM; k++) {
            double t = run(k);

            if (t < best[k])
                best[k] = t;
        }
    gb = (double)size * (double)count * 1e-9;
    printf("%zu tensors of %zu MiB through a pipe, best of %d\n", count,
           size >> 20, ROUNDS);
    printf("  write(2), read(2)             %6.2f GB/s\n", gb / best[RAW]);
    printf("  vmsplice(2), read(2)          %6.2f GB/s\n", gb / best[LENT]);
    printf("  stream_write, stream_next     %6.2f GB/s  %5.1f %% of write, "
           "read\n",
           gb / best[STREAM], best[RAW] / best[STREAM] * 100);
    return 0;
}
