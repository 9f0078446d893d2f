/* base.c - messages, errors and allocation that cannot fail quietly. */
#include "common/base.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/mman.h>
#include <unistd.h>

const char forge_what[] = "@(#)4bit-forge " FORGE_VERSION;
const char *progname = "forge";
int verbosity;

/* Descriptors 0 to 2 that are closed would be those of files that are opened next, which
 * messages would be written into.  These cannot be read, or written. */
static void open_standard(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

void base_init(const char *argv0)
{
    const char *slash = strrchr(argv0, '/');

    open_standard();
    progname = slash ? slash + 1 : argv0;
    signal(SIGXFSZ, SIG_IGN); /* exceeded file size limit: EFBIG, not a
                               * signal */
    signal(SIGPIPE, SIG_IGN); /* a closed pipe: EPIPE, so that cleanup can
                               * run */
}

/* One message is one line and one write(2), so that the messages of a
 * pipeline's tools never cut each other in half. */
static void say(const char *kind, const char *fmt, va_list ap)
{
    char line[1024];
    int n = snprintf(line, sizeof(line), "%s: %s", progname, kind);
    int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
    size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);

    if (len > sizeof(line) - 2)
        len = sizeof(line) - 2;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?'; /* no terminal control sequences from names in the
                            * input */
    line[len++] = '\n';
    if (write(2, line, len) < 0)
        return; /* there is no other place for a message */
}

static void print(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    say("", fmt, ap);
    va_end(ap);
}

void err_print(const struct err *e)
{
    if (!e->told)
        print("%s", e->msg);
}

int flush_stdout(struct err *e)
{
    return fflush(stdout) || ferror(stdout) ?
               err_set(e, E_IO, "cannot write '<stdout>':") :
               0;
}

void (*die_tells)(const struct err *why);

void die_err(const struct err *e)
{
    err_print(e);
    if (die_tells)
        die_tells(e);
    _exit(-e->code);
}

void warning(const char *fmt, ...)
{
    va_list ap;

    if (verbosity < 0)
        return;
    va_start(ap, fmt);
    say("warning: ", fmt, ap);
    va_end(ap);
}

void remark(const char *fmt, ...)
{
    va_list ap;

    if (verbosity < 0)
        return;
    va_start(ap, fmt);
    say("", fmt, ap);
    va_end(ap);
}

void info(const char *fmt, ...)
{
    va_list ap;

    if (verbosity < 1)
        return;
    va_start(ap, fmt);
    say("", fmt, ap);
    va_end(ap);
}

static void set(struct err *e, int code, const char *fmt, va_list ap)
{
    int saved = errno;
    size_t n;

    e->code = code;
    e->told = false;
    vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
    n = strlen(e->msg);
    if (n && e->msg[n - 1] == ':') { /* append strerror(errno) */
        snprintf(e->msg + n, sizeof(e->msg) - n, " %s", strerror(saved));
        e->told = saved == EPIPE;
    }
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    set(e, code, fmt, ap);
    va_end(ap);
    return code;
}

void die(int code, const char *fmt, ...)
{
    struct err e;
    va_list ap;

    va_start(ap, fmt);
    set(&e, code, fmt, ap);
    va_end(ap);
    die_err(&e);
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    char old[sizeof(e->msg)];
    va_list ap;
    int n;

    memcpy(old, e->msg, sizeof(old));
    va_start(ap, fmt);
    n = vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof(e->msg))
        snprintf(e->msg + n, sizeof(e->msg) - (size_t)n, ": %.*s",
                 (int)sizeof(old) - 1 - n, old);
    return e->code;
}

int err_open_code(int errnum)
{
    return errnum == ENOMEM || errnum == EMFILE || errnum == ENFILE ? E_TEMP :
           errnum == EIO                                            ? E_IO :
                                                                      E_NOINPUT;
}

static void *no_memory(size_t n, const char *where, struct err *e)
{
    err_set(e, E_TEMP, "%s: cannot allocate %zu bytes", where, n);
    return NULL;
}

void *mem_alloc(size_t n, const char *where, struct err *e)
{
    void *p = malloc(n ? n : 1);

    return p ? p : no_memory(n, where, e);
}

void *mem_zero(size_t count, size_t size, const char *where, struct err *e)
{
    void *p = calloc(count ? count : 1, size ? size : 1);

    return p ? p : no_memory(count * size, where, e);
}

char *mem_text(const char *s, size_t n, const char *where, struct err *e)
{
    char *p = mem_alloc(n + 1, where, e);

    if (p) {
        memcpy(p, s, n);
        p[n] = 0;
    }
    return p;
}

int mem_grow(void *pp, size_t n, const char *where, struct err *e)
{
    void *old, *p;

    memcpy(&old, pp, sizeof(old));
    p = realloc(old, n ? n : 1);
    if (!p) {
        no_memory(n, where, e);
        return e->code;
    }
    memcpy(pp, &p, sizeof(p));
    return 0;
}

enum { HUGE_PAGE = 2 << 20 };

void *mem_pages(size_t n, const char *where, struct err *e)
{
    void *p = NULL;
    bool huge = n >= HUGE_PAGE;

    if (posix_memalign(&p, huge ? HUGE_PAGE : 4096, n ? n : 1))
        return no_memory(n, where, e);
    if (huge) /* madvise wants whole pages; failure is harmless */
        madvise(p, n / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return p;
}

int mem_reserve(void *pp, size_t *cap, size_t n, const char *where,
                struct err *e)
{
    void *p;

    if (n <= *cap)
        return 0;
    memcpy(&p, pp, sizeof(p));
    free(p); /* first: memory may not hold both */
    *cap = 0;
    p = mem_pages(n, where, e);
    memcpy(pp, &p, sizeof(p));
    if (!p)
        return e->code;
    *cap = n;
    return 0;
}

double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

void sort_doubles(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), ascending);
}
