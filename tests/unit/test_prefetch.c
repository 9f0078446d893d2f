/* Frames read ahead: all of them, in order, in batches that end where they are
 * full or where the writer waits for an answer; kept ones come again; what a
 * callback adds is in its place; errors come behind the frames before them.  The
 * same frame by frame, where nothing is read ahead, and with large payloads. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/io/prefetch.h"
#include "common/math/threads.h"
#include "test.h"

enum { FRAMES = 50, UNITS = 4000, LARGE = 100 /* bytes of a large unit */ };

static struct err e;
static size_t unit = 1; /* bytes */

static size_t bytes_of(int i)
{
    return (size_t)(i * 389 % UNITS) * unit;
}

static void write_one(struct stream_writer *w, int i)
{
    static uint8_t data[UNITS * LARGE];
    size_t n = bytes_of(i);
    struct frame f = { .role = ROLE_TENSOR,
                       .dtype = DT_U8,
                       .ndim = 1,
                       .dims = { n },
                       .modules = i % 3 ? NULL : "a\nb",
                       .data = data,
                       .len = n };

    memset(data, i, sizeof(data));
    snprintf(f.name, sizeof(f.name), "%d", i);
    CHECK(stream_write(w, &f, &e) == 0);
}

static void check_one(const struct frame *f, int i)
{
    const uint8_t *p = f->data;

    CHECK(atoi(f->name) == i && f->len == bytes_of(i));
    CHECK(!f->len || (p[0] == (uint8_t)i && p[f->len - 1] == (uint8_t)i));
    CHECK(!f->len || !memcmp(p, p + 1, f->len - 1));
    CHECK(!f->modules == !!(i % 3) && (i % 3 || !strcmp(f->modules, "a\nb")));
}

static void make_file(const char *path)
{
    struct stream_writer *w;

    CHECK(stream_create(&w, &(struct stream_output){ .path = path }, &e) == 0);
    for (int i = 0; i < FRAMES; i++)
        write_one(w, i);
    CHECK(stream_finish(w, &e) == 0);
}

struct reading {
    struct stream_reader *in;
    struct stream_writer *out;
    struct prefetch *a;
};

static struct reading begin(const char *path, const struct prefetch_params *p)
{
    struct reading r;
    struct stream_output out = { .path = "ahead-out" };

    CHECK(stream_open(&r.in, path, NULL, &e) == 0);
    CHECK(stream_create(&r.out, &out, &e) == 0);
    CHECK(prefetch_open(&r.a, r.in, r.out, p, &e) == 0);
    return r;
}

static void end(struct reading *r)
{
    prefetch_close(r->a);
    stream_close(r->in);
    stream_abort(r->out, NULL);
}

/* Every third frame is kept once. */
static void check_file(const char *path, const struct prefetch_params *p)
{
    struct reading r = begin(path, p);
    const struct frame *f;
    int n, next = 0, kept = 0, batches = 0;

    CHECK(!prefetch_head(r.a));
    while (prefetch_next(r.a, &f, &n, &e) > 0) {
        int keep = 0;

        CHECK(prefetch_head(r.a) && n - kept <= p->frames);
        for (int i = 0; i < kept; i++)
            check_one(&f[i], atoi(f[i].name));
        for (int i = kept; i < n; i++, next++) {
            check_one(&f[i], next);
            if (next % 3 == 0) {
                prefetch_keep(r.a, i);
                keep++;
            }
        }
        kept = keep;
        batches++;
    }
    CHECK(next == FRAMES && batches > 1);
    CHECK(prefetch_next(r.a, &f, &n, &e) == 0);
    end(&r);
}

/* In front of each frame with modules its number doubled. */
static int double_it(void *arg, struct prefetch *a, const struct frame *f,
                     const struct frame *have, int n, struct frame *more,
                     struct err *why)
{
    int *data;

    CHECK(!n || atoi(have[n - 1].name) < atoi(f->name));
    if (!f->modules)
        return 0;
    if (!(data = prefetch_alloc(a, sizeof(*data), why)))
        return why->code;
    *data = 2 * atoi(f->name);
    *(int *)arg += 1;
    *more =
        (struct frame){ .role = ROLE_NOTE, .data = data, .len = sizeof(*data) };
    return 1;
}

static void check_added(const char *path)
{
    int added = 0, seen = 0, n;
    const struct prefetch_params p = {
        .bytes = 9000, .frames = 7, .before = double_it, .arg = &added
    };
    struct reading r = begin(path, &p);
    const struct frame *f;

    while (prefetch_next(r.a, &f, &n, &e) > 0)
        for (int i = 0; i < n; i++)
            if (f[i].role == ROLE_NOTE) {
                int value;

                memcpy(&value, f[i].data, sizeof(value));
                CHECK(i + 1 < n && value == 2 * atoi(f[i + 1].name));
                seen++;
            }
    CHECK(seen == added && seen == (FRAMES + 2) / 3);
    end(&r);
}

static void check_cut(const char *path, size_t bytes)
{
    const struct prefetch_params p = { .bytes = bytes, .frames = 7 };
    struct reading r;
    const struct frame *f;
    struct stat st;
    int n, rc, next = 0;

    CHECK(stat(path, &st) == 0 && truncate(path, st.st_size - 5000) == 0);
    r = begin(path, &p);
    while ((rc = prefetch_next(r.a, &f, &n, &e)) > 0)
        for (int i = 0; i < n; i++)
            check_one(&f[i], next++);
    CHECK(rc == E_DATA && next > FRAMES / 2 && next < FRAMES);
    CHECK(prefetch_next(r.a, &f, &n, &e) == E_DATA);
    end(&r);
}

/* The writer sends no more than three frames before it is answered. */
static void check_pipe(size_t bytes)
{
    const struct prefetch_params p = { .bytes = bytes, .frames = 100 };
    int to[2], back[2], next = 0, n, status;
    const struct frame *f;
    struct reading r;
    pid_t child;
    char c = 0;

    CHECK(pipe(to) == 0 && pipe(back) == 0);
    child = fork();
    if (!child) {
        struct stream_writer *w;

        alarm(60);
        dup2(to[1], 1);
        close(to[0]);
        CHECK(stream_create(&w, &(struct stream_output){ 0 }, &e) == 0);
        for (int i = 0; i < FRAMES; i++) {
            write_one(w, i);
            if (i % 3 == 2)
                CHECK(stream_flush(w, &e) == 0 && read(back[0], &c, 1) == 1);
        }
        CHECK(stream_finish(w, &e) == 0);
        _exit(0);
    }
    close(to[1]);
    dup2(to[0], 0);
    r = begin(NULL, &p);
    while (prefetch_next(r.a, &f, &n, &e) > 0)
        for (int i = 0; i < n; i++, next++) {
            check_one(&f[i], next);
            if (next % 3 == 2)
                CHECK(write(back[1], &c, 1) == 1);
        }
    CHECK(next == FRAMES);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    end(&r);
}

int main(void)
{
    char dir[] = "/tmp/test_ahead.XXXXXX";

    base_init("test_ahead");
    alarm(60);
    CHECK(mkdtemp(dir) && chdir(dir) == 0);
    make_file("stream");
    check_file("stream",
               &(struct prefetch_params){ .bytes = 9000, .frames = 100 });
    check_file("stream",
               &(struct prefetch_params){ .bytes = 1, .frames = 100 });
    check_file("stream",
               &(struct prefetch_params){ .bytes = 90000, .frames = 4 });
    check_file("stream", &(struct prefetch_params){ .bytes = 0, .frames = 1 });
    check_added("stream");
    check_pipe(1 << 20);
    check_pipe(0);
    check_cut("stream", 0);
    check_cut("stream", 9000);
    unlink("stream");
    unit = LARGE; /* payloads that change hands with the reader's memory */
    make_file("stream");
    check_file("stream",
               &(struct prefetch_params){ .bytes = 900000, .frames = 100 });
    check_added("stream");
    check_pipe(1 << 20);
    check_pipe(0);
    unlink("stream");
    CHECK(rmdir(dir) == 0);
    return 0;
}
