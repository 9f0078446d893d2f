/* lent_bench - one process lends a tensor, the next one in the pipe reads it where it
 * is.
 *
 *   lent_bench [DEVICE [MB [frames]]]    default cpu, 1000 MB (1e6 bytes), 101
 *
 * Two processes with a pipe between them, as two tools of a run have it.  The payload
 * is in room of the run's ledger, the host's memory; with `cuda` in a block of the
 * GPU's memory, which the reader maps by CUDA IPC.  Each frame has marks of its own at
 * both ends, 64 bytes; the first frame's bytes are compared one by one.  A frame's
 * time is from before it is written until the reader has seen both marks, that of the
 * first includes the mapping.  For comparison the same bytes through the pipe.
 * Bar: 1 ms. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/io/stream.h"
#include "device/device.h"
#include "device/ledger.h"
#include "model/forward_table.h"

enum { MARK = 64, COPIES = 3, FRAMES_MAX = 10000 };

static struct err e;
static const char *device;
static size_t size, frames;
static char ledger_path[] = "/dev/shm/lent_bench.XXXXXX";
/* Of both processes: when a frame was written, and when it had been seen. */
static struct {
    double sent[FRAMES_MAX], seen[FRAMES_MAX];
} * times;
static int answer[2]; /* pipe: a byte for each frame that has been seen */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(int rc)
{
    if (rc < 0)
        die_err(&e);
}

static bool on_gpu(void)
{
    return strcmp(device, "cpu") != 0;
}

static uint32_t value(size_t i)
{
    return (uint32_t)(i * 2654435761u);
}

static void mark_of(size_t frame, char mark[MARK])
{
    for (int i = 0; i < MARK; i++)
        mark[i] = (char)(frame * 31 + (size_t)i);
}

static void open_device(void)
{
    const struct device_choice c = { .name = device };

    must(device_open(&c, &forward_plugin, &e));
}

static void await_answer(void)
{
    char c;

    if (read(answer[0], &c, 1) != 1)
        die(E_IO, "the reader is gone");
}

/* ---- writer ---- */

static void put(void *to, const void *from, size_t n)
{
    if (on_gpu())
        must(forward_functions()->put(device_gpu(), to, from, n, &e));
    else
        memcpy(to, from, n);
}

static void put_marks(char *block, size_t frame)
{
    char mark[MARK];

    mark_of(frame, mark);
    put(block, mark, MARK);
    put(block + size - MARK, mark, MARK);
    if (on_gpu())
        must(device_functions()->settle(device_gpu(), &e));
}

/* *loan of a block with the values of all frames. */
static char *lend(struct ledger *l, const uint32_t *data, struct loan *loan)
{
    void *block;

    if (on_gpu()) {
        must(device_functions()->block(device_gpu(), &block, size, &e));
        must(ledger_loan(block, 0, loan, &e));
    } else if (!ledger_room(l, 0, 1, size, &block, loan)) {
        die(E_TEMP, "no room to lend");
    }
    put(block, data, size);
    return block;
}

static void write_frames(const uint32_t *data)
{
    struct frame f = { .role = ROLE_TENSOR,
                       .dtype = DT_U32,
                       .ndim = 1,
                       .dims = { size / 4 },
                       .len = size,
                       .lent = true };
    struct stream_writer *w;
    struct loan loan;
    struct ledger *l;
    char *block;

    must(ledger_open(&l, ledger_path, &e));
    open_device();
    block = lend(l, data, &loan);
    await_answer(); /* the reader has started */
    must(stream_create(&w, &(struct stream_output){ .path = NULL }, &e));
    for (size_t i = 0; i < frames + COPIES; i++) {
        if (i < frames) {
            put_marks(block, i);
            f.loan = loan;
        } else {
            f.loan = (struct loan){ 0 };
            f.data = data;
        }
        snprintf(f.name, sizeof(f.name), "tensor.%zu", i);
        times->sent[i] = now();
        must(stream_write(w, &f, &e));
        must(stream_flush(w, &e));
        await_answer();
    }
    must(stream_finish(w, &e));
}

/* ---- reader ---- */

/* n bytes of the payload, from `at` on: where they are on the host, or copied to
 * `to`. */
static const char *look(const char *p, size_t at, size_t n, char *to)
{
    if (!on_gpu())
        return p + at;
    must(device_functions()->fetch(device_gpu(), to, p + at, n, &e));
    return to;
}

static void check_marks(const char *p, size_t frame)
{
    char mark[MARK], first[MARK], last[MARK];

    mark_of(frame, mark);
    if (memcmp(look(p, 0, MARK, first), mark, MARK) ||
        memcmp(look(p, size - MARK, MARK, last), mark, MARK))
        die(E_BUG, "frame %zu: the marks are not its own", frame);
}

/* All between the marks. */
static void check_bytes(const char *p)
{
    char *room = on_gpu() ? mem_pages(size, "bytes", &e) : NULL;
    const uint32_t *is;

    if (on_gpu() && !room)
        die_err(&e);
    is = (const uint32_t *)look(p, 0, size, room);
    for (size_t i = MARK / 4; i < (size - MARK) / 4; i++)
        if (is[i] != value(i))
            die(E_BUG, "word %zu arrived changed", i);
    free(room);
}

static void read_frames(void)
{
    const struct stream_expect expect = { .loans = true };
    struct stream_reader *r;
    struct ledger *l;
    struct frame f;
    int rc;

    must(ledger_open(&l, ledger_path, &e));
    open_device();
    must(stream_open(&r, NULL, &expect, &e));
    if (write(answer[1], "", 1) != 1)
        die(E_IO, "the writer is gone");
    for (size_t i = 0; (rc = stream_next(r, &f, &e)) > 0; i++) {
        const void *p = f.data;

        if (f.loan.lent) {
            must(on_gpu() ? ledger_map(l, &f.loan, &p, &e) :
                            ledger_see(l, &f.loan, f.len, &p, &e));
            check_marks(p, i);
        }
        times->seen[i] = now();
        if (f.len != size || !f.loan.lent != (i >= frames))
            die(E_BUG, "frame %zu is not as it was sent", i);
        if (!i)
            check_bytes(p);
        if (write(answer[1], "", 1) != 1)
            die(E_IO, "the writer is gone");
    }
    must(rc);
    stream_close(r);
}

/* ---- both ---- */

static void run(void)
{
    int ends[2], status, failed = 0;

    if (pipe(ends) || pipe(answer))
        die(E_IO, "no pipe");
    for (int i = 0; i < 2; i++)
        if (fork() == 0) {
            uint32_t *data = i ? mem_pages(size, "data", &e) : NULL;

            dup2(ends[i], i);
            close(ends[0]);
            close(ends[1]);
            close(answer[i]);
            if (i && !data)
                die_err(&e);
            for (size_t k = 0; i && k < size / 4; k++)
                data[k] = value(k);
            if (i)
                write_frames(data);
            else
                read_frames();
            _exit(0);
        }
    close(ends[0]);
    close(ends[1]);
    close(answer[0]);
    close(answer[1]);
    while (wait(&status) > 0)
        failed |= status;
    unlink(ledger_path);
    if (failed)
        die(E_BUG, "one end failed");
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    double t[FRAMES_MAX], copy = 1e9, median;
    size_t n;
    int fd;

    base_init(argv[0]);
    device = argc > 1 ? argv[1] : "cpu";
    size = (size_t)(argc > 2 ? atoi(argv[2]) : 1000) * 1000000;
    frames = (size_t)(argc > 3 ? atoi(argv[3]) : 101);
    if (!size || frames < 3 || frames + COPIES > FRAMES_MAX)
        die(E_USAGE, "want [cpu|cuda [MB [frames]]], 3 to %d frames",
            FRAMES_MAX - COPIES);
    times = mmap(NULL, sizeof(*times), PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fd = mkstemp(ledger_path);
    if (times == MAP_FAILED || fd < 0)
        die(E_TEMP, "no memory to share");
    close(fd);
    run();
    for (size_t i = 0; i < frames + COPIES; i++)
        t[i] = times->seen[i] - times->sent[i];
    for (size_t i = frames; i < frames + COPIES; i++)
        copy = t[i] < copy ? t[i] : copy;
    n = frames - 1; /* the first maps */
    qsort(t + 1, n, sizeof(*t), ascending);
    median = t[1 + n / 2];
    printf("a frame of %.1f GB to the next tool, lent in the %s memory, %zu of "
           "them\n",
           (double)size * 1e-9, on_gpu() ? "GPU's" : "host's", n);
    printf("  median %.3f ms, 19 of 20 below %.3f ms; the first, which is "
           "mapped, %.2f ms; bar 1 ms%s\n",
           1e3 * median, 1e3 * t[1 + n * 19 / 20], 1e3 * t[0],
           median < 1e-3 ? "" : ": MISSED");
    printf("  through the pipe %.0f ms, %.2f GB/s\n", 1e3 * copy,
           (double)size * 1e-9 / copy);
    return 0;
}
