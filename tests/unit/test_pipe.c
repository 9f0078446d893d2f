/* A stream through a pipe is the bytes that a file gets, whatever the writer
 * does with his memory after stream_write() and however late the reader comes:
 * what was written is lent to the pipe (common/io/stream_sink.c), so a reader that
 * splices it on without looking at it (as pv does) is the hard case. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/io/stream.h"
#include "test.h"

enum { FRAMES = 40, LARGEST = 3 << 20, PIPE = 1 << 20 };

static struct err e;

/* Sizes around those of pages, pieces and huge pages, large ones seldom. */
static size_t size_of(size_t i)
{
    static const size_t sizes[] = { 1,       4095,        4096, 65,
                                    PIPE,    LARGEST - 3, 0,    262144 - 64,
                                    2097152, 777777 };

    return sizes[i % ARRAY_LEN(sizes)] + i / ARRAY_LEN(sizes);
}

/* All frames from one buffer, which changes behind each write; lent: each from
 * memory of its own, which stays. */
static void write_frames(const char *path, bool lent)
{
    static uint8_t buffer[LARGEST + FRAMES];
    struct stream_writer *w;

    CHECK(stream_create(&w, &(struct stream_output){ .path = path }, &e) == 0);
    for (size_t i = 0; i < FRAMES; i++) {
        uint8_t *data = lent ? malloc(size_of(i) + 1) : buffer;
        struct frame f = { .role = ROLE_TENSOR,
                           .dtype = DT_U8,
                           .ndim = 1,
                           .dims = { size_of(i) },
                           .lent = lent,
                           .data = data,
                           .len = size_of(i) };

        CHECK(data);
        snprintf(f.name, sizeof(f.name), "tensor.%zu", i);
        memset(data, (int)i + 1, f.len);
        CHECK(stream_write(w, &f, &e) == 0);
        memset(buffer, 0xee, sizeof(buffer));
    }
    CHECK(stream_finish(w, &e) == 0);
}

/* Move what comes from `in` into a second pipe until both are full and the
 * writer stands still, then read it from there. */
static size_t read_late(int in, uint8_t *to, size_t cap)
{
    int held[2];
    size_t n = 0;
    ssize_t k = 1, got;

    CHECK(pipe(held) == 0);
    fcntl(held[1], F_SETPIPE_SZ, PIPE);
    while (k > 0) {
        size_t in_held = 0;
        struct pollfd more = { .fd = in, .events = POLLIN };

        while (poll(&more, 1, in_held ? 20 : -1) > 0 &&
               (k = splice(in, NULL, held[1], NULL, PIPE, SPLICE_F_NONBLOCK)) >
                   0)
            in_held += (size_t)k;
        CHECK(in_held || k == 0);
        for (; in_held; in_held -= (size_t)got) {
            CHECK(n < cap);
            got = read(held[0], to + n, in_held < cap - n ? in_held : cap - n);
            CHECK(got > 0);
            n += (size_t)got;
        }
        if (k < 0)
            k = 1; /* the second pipe was full: go on */
    }
    close(held[0]);
    close(held[1]);
    return n;
}

/* What the system may lack; some shells have sockets in place of pipes. */
enum lack { NOTHING, HUGE_PAGES, VMSPLICE, PIPES };

static void take_away(enum lack what)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_vmsplice, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { ARRAY_LEN(code), code };

    /* where this is not allowed, the test is the same */
    if (what == HUGE_PAGES)
        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    if (what == VMSPLICE)
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* The reader has the end of the stream while the writer still runs: that waits for
 * the reader. */
static void compare(const uint8_t *want, size_t size, enum lack what, bool lent)
{
    uint8_t *got = malloc(size + 1);
    int ends[2], seen[2], status;
    pid_t child;

    CHECK(got && pipe(seen) == 0);
    CHECK((what == PIPES ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) :
                           pipe(ends)) == 0);
    child = fork();
    if (!child) {
        alarm(60);
        close(seen[1]);
        take_away(what);
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        write_frames(NULL, lent);
        _exit(read(seen[0], &status, 1) != 0);
    }
    close(ends[1]);
    close(seen[0]);
    CHECK(read_late(ends[0], got, size + 1) == size);
    close(seen[1]);
    CHECK(!memcmp(got, want, size));
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(ends[0]);
    free(got);
}

int main(void)
{
    char path[] = "/tmp/test_pipe.XXXXXX";
    uint8_t *want;
    struct stat st;
    int fd;

    base_init("test_pipe");
    CHECK(mkdtemp(path));
    CHECK(chdir(path) == 0);
    write_frames("stream", false);
    fd = open("stream", O_RDONLY);
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    want = malloc((size_t)st.st_size);
    CHECK(want && read(fd, want, (size_t)st.st_size) == st.st_size);
    unlink("stream");
    rmdir(path);
    for (enum lack what = NOTHING; what <= PIPES; what++) {
        compare(want, (size_t)st.st_size, what, false);
        compare(want, (size_t)st.st_size, what, true);
    }
    free(want);
    return 0;
}
