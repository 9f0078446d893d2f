/* pipes.c - see pipes.h. */
#include "forge/pipes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "split/along.h"

enum { NOT_FOUND = 127, LINE_CAP = 1 << 16 };

/* Splits what is read from a descriptor into lines. */
struct lines {
    int fd;
    char *text;
    size_t len;
    void (*line)(void *ctx, const char *text, size_t len);
    void *ctx;
};

struct runner {
    struct pipes *p;
    pid_t pid[PIPE_COMMANDS];
    int status[PIPE_COMMANDS];   /* as waitpid(2) gives it */
    bool stopped[PIPE_COMMANDS]; /* by us, since another one failed */
    int left, ring;              /* not ended yet: of all, of the ring */
    int said;                    /* the signal that we got; 0: none */
    char reason[REASON_MAX];
    struct lines report, why;
};

void pipes_init(struct pipes *p)
{
    *p = (struct pipes){ .in = -1,
                         .out = -1,
                         .report = -1,
                         .report_end = -1,
                         .ledger = -1,
                         .along = -1,
                         .along_end = -1 };
}

struct command *pipes_add(struct pipes *p, const char *name)
{
    struct command *c = &p->command[p->n++];

    command_add(c, name, NULL);
    return c;
}

void command_add(struct command *c, const char *word, ...)
{
    va_list ap;

    va_start(ap, word);
    for (; word && c->argc < COMMAND_WORDS; word = va_arg(ap, const char *))
        c->argv[c->argc++] = word;
    va_end(ap);
}

const char *number_word(char to[WORD], int64_t n)
{
    snprintf(to, WORD, "%" PRId64, n);
    return to;
}

/* A pipe from who writes to `path` to *from. */
static int open_pipe(int *from, int *to, char path[32], struct err *e)
{
    int fd[2];

    if (pipe2(fd, O_CLOEXEC))
        return err_set(e, E_TEMP, "pipe:");
    *from = fd[0];
    *to = fd[1];
    snprintf(path, 32, "/dev/fd/%d", fd[1]);
    return 0;
}

int pipes_report(struct pipes *p, char path[32], struct err *e)
{
    return open_pipe(&p->report, &p->report_end, path, e);
}

int pipes_along(struct pipes *p, char path[32], struct err *e)
{
    return open_pipe(&p->along, &p->along_end, path, e);
}

int pipes_ledger(struct pipes *p, char path[32], struct err *e)
{
    p->ledger = memfd_create("ledger", MFD_CLOEXEC);
    if (p->ledger < 0)
        return err_set(e, E_TEMP, "ledger:");
    snprintf(path, 32, "/dev/fd/%d", p->ledger);
    return 0;
}

/* ---- starting ---- */

/* Copy all of fd to standard output, a pipe. */
static bool copy_out(int fd)
{
    ssize_t n = 1;

    while (n > 0 || (n < 0 && errno == EINTR))
        n = splice(fd, NULL, STDOUT_FILENO, NULL, 1 << 20, 0);
    return !n;
}

/* Open file number i of the pattern; wait: when it is there. */
static int open_file(const char *pattern, int64_t i, bool wait)
{
    const struct timespec moment = { .tv_nsec = 10000000 };
    char path[PATH_MAX];
    int fd;

    layer_path(pattern, i, path);
    while ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0 && wait &&
           errno == ENOENT)
        nanosleep(&moment, NULL);
    return fd;
}

/* Copy what comes before the command's own output. */
static bool copy_before(const struct pipes *p, const struct command *c)
{
    bool done = !c->along || copy_out(p->along);

    for (int64_t i = 0; i < c->n_before && done; i++) {
        int fd = open_file(c->before, i, p->loop);

        /* along: a pipe that ends too early is no reason to go on */
        done = fd >= 0 && (c->along || copy_out(fd));
        if (fd >= 0)
            close(fd);
    }
    return done;
}

static void close_all(int *fd, int n)
{
    for (int i = 0; i < n; i++)
        if (fd[i] >= 0)
            close(fd[i]);
}

/* between: all pipes.  Who waits for a file that others make must not hold the ends
 * that they wait for. */
NORETURN static void become(const struct pipes *p, const struct command *c,
                            const int fd[3], int *between, pid_t parent,
                            const sigset_t *mask)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(NOT_FOUND);
    for (int i = 0; i < 3; i++)
        if (fd[i] >= 0 && dup2(fd[i], i) < 0)
            _exit(NOT_FOUND);
    close_all(between, 2 * PIPE_COMMANDS);
    if (c->writes_report)
        fcntl(p->report_end, F_SETFD, 0);
    if (c->lends)
        fcntl(p->ledger, F_SETFD, 0);
    if (c->feeds)
        fcntl(p->along_end, F_SETFD, 0);
    else if (p->along_end >= 0)
        close(p->along_end);
    sigprocmask(SIG_SETMASK, mask, NULL);
    signal(SIGPIPE, SIG_DFL);
    if (!copy_before(p, c))
        _exit(-E_IO);
    if (c->feeder)
        _exit(0);
    execvp(c->argv[0], (char *const *)c->argv);
    _exit(NOT_FOUND);
}

/* Number of the commands of the first pipe; all others are beside it. */
static int first_pipe(const struct pipes *p)
{
    int i = 0;

    while (i < p->n && !p->command[i].beside)
        i++;
    return i;
}

/* between[2i], [2i + 1]: read and write end of the pipe in front of command i;
 * for the first command only with p->loop. */
static int start_all(struct runner *r, int why, const sigset_t *mask,
                     struct err *e)
{
    struct pipes *p = r->p;
    int between[2 * PIPE_COMMANDS], end = first_pipe(p), rc = 0;
    pid_t self = getpid();

    memset(between, -1, sizeof(between));
    for (int i = p->loop ? 0 : 1; i < p->n && !rc; i++)
        if (i != end && pipe2(between + 2 * i, O_CLOEXEC))
            rc = err_set(e, E_TEMP, "pipe:");
    for (int i = 0; i < p->n && !rc; i++) {
        const int fd[3] = {
            i == end || (!i && !p->loop) ? p->in : between[2 * i],
            i + 1 == end && p->loop ? between[1] :
            i + 1 < p->n            ? between[2 * i + 3] :
                                      p->out,
            why,
        };

        r->pid[i] = fork();
        if (!r->pid[i])
            become(p, &p->command[i], fd, between, self, mask);
        if (r->pid[i] < 0)
            rc = err_set(e, E_TEMP, "fork:");
        else
            r->left++;
    }
    close_all(between, 2 * PIPE_COMMANDS);
    return rc;
}

/* A command that is stopped ends, too. */
static void end_command(pid_t pid)
{
    kill(pid, SIGTERM);
    kill(pid, SIGCONT);
}

/* The last ones first, so that nobody misses input. */
static void end_all(const struct runner *r)
{
    for (int i = r->p->n; i-- > 0;)
        if (r->pid[i] > 0)
            end_command(r->pid[i]);
}

/* ---- following ---- */

/* Read, and pass complete lines on.  False: end of file. */
static bool take_lines(struct lines *l)
{
    ssize_t n = read(l->fd, l->text + l->len, LINE_CAP - l->len);
    char *from = l->text, *end;

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return true;
    if (n <= 0)
        return false;
    l->len += (size_t)n;
    while ((end = memchr(from, '\n', l->len - (size_t)(from - l->text)))) {
        l->line(l->ctx, from, (size_t)(end - from));
        from = end + 1;
    }
    l->len -= (size_t)(from - l->text);
    memmove(l->text, from, l->len);
    if (l->len == LINE_CAP)
        l->len = 0; /* overlong, none of our tools' lines: dropped */
    return true;
}

static void keep_reason(void *ctx, const char *text, size_t len)
{
    struct runner *r = ctx;

    if (!r->reason[0])
        snprintf(r->reason, sizeof(r->reason), "%.*s", (int)len, text);
}

/* Command i has failed.  In the ring: end the pipe beside it.  Beside it: end the ring,
 * and what is in front of i and may wait for a file; as in end_all(). */
static void stop_others(struct runner *r, int i)
{
    int end = first_pipe(r->p);

    for (int k = r->p->n; k-- > 0;)
        if (r->pid[k] > 0 && (i < end ? k >= end : k < i)) {
            r->stopped[k] = true;
            end_command(r->pid[k]);
        }
}

static void reap(struct runner *r)
{
    int status;

    for (int i = 0; i < r->p->n; i++)
        if (r->pid[i] > 0 && waitpid(r->pid[i], &status, WNOHANG) > 0) {
            r->status[i] = r->stopped[i] ? 0 : status;
            r->pid[i] = 0;
            r->left--;
            if (r->status[i])
                stop_others(r, i);
            else if (i < first_pipe(r->p) && !r->stopped[i] && !--r->ring &&
                     r->p->loop && r->p->ring_done)
                r->p->ring_done(r->p->ctx);
        }
}

static void take_signals(struct runner *r, int fd)
{
    struct signalfd_siginfo s;

    while (read(fd, &s, sizeof(s)) == (ssize_t)sizeof(s)) {
        if (s.ssi_signo == SIGCHLD)
            continue;
        r->said = (int)s.ssi_signo;
        end_all(r);
    }
}

/* Wait until all commands have ended and all their lines have been read. */
static void follow(struct runner *r, int signals)
{
    struct pollfd p[3] = { { .fd = signals, .events = POLLIN },
                           { .fd = r->report.fd, .events = POLLIN },
                           { .fd = r->why.fd, .events = POLLIN } };

    for (reap(r); r->left; reap(r)) {
        if (poll(p, 3, -1) < 0 && errno != EINTR)
            break;
        if (p[0].revents)
            take_signals(r, signals);
        if (p[1].revents && !take_lines(&r->report))
            p[1].fd = -1;
        if (p[2].revents && !take_lines(&r->why))
            p[2].fd = -1;
    }
    while (p[1].fd >= 0 && take_lines(&r->report))
        ;
    while (p[2].fd >= 0 && take_lines(&r->why))
        ;
}

/* ---- which command has failed ---- */

static int blame_signal(const char *name, int number, struct err *e)
{
    switch (number) {
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGABRT:
    case SIGSYS:
    case SIGTRAP:
        return err_set(e, E_BUG, "%s: crashed by signal %d (%s)", name, number,
                       strsignal(number));
    default:
        return err_set(e, E_TEMP, "%s: killed by signal %d%s", name, number,
                       number == SIGKILL ? ": out of memory?" : "");
    }
}

static int blame_status(const struct runner *r, int i, struct err *e)
{
    int code = WEXITSTATUS(r->status[i]);
    const char *name = r->p->command[i].argv[0];

    if (code == EXIT_NO && i == r->p->n - 1)
        return EXIT_NO;
    if (code == NOT_FOUND)
        return err_set(e, E_NOINPUT, "%s: cannot be started", name);
    if (code < 64 || code > 78)
        return err_set(e, E_BUG, "%s: ended with status %d", name, code);
    err_set(e, -code, "%s",
            r->reason[0] ? r->reason : "a step failed without a word");
    e->told = !r->p->captured;
    return e->code;
}

/* Index of the command that printed r->reason; -1: not known. */
static int of_reason(const struct runner *r)
{
    for (int i = 0; i < r->p->n; i++) {
        const char *name = r->p->command[i].argv[0];
        size_t n = strlen(name);

        if (!strncmp(r->reason, name, n) && r->reason[n] == ':' &&
            WIFEXITED(r->status[i]) && WEXITSTATUS(r->status[i]))
            return i;
    }
    return -1;
}

/* The error of the command that caused the failure: one killed by a signal;
 * else the one that printed the first message; else the last one that failed,
 * since those before it fail by its closed pipe. */
static int blame(const struct runner *r, struct err *e)
{
    int last = -1, spoke = of_reason(r);

    if (r->said) {
        err_set(e, E_TEMP, "stopped by signal %d", r->said);
        return -(128 + r->said);
    }
    for (int i = 0; i < r->p->n; i++) {
        if (WIFSIGNALED(r->status[i]) && WTERMSIG(r->status[i]) != SIGPIPE)
            return blame_signal(r->p->command[i].argv[0],
                                WTERMSIG(r->status[i]), e);
        if (r->status[i])
            last = i;
    }
    if (spoke >= 0)
        return blame_status(r, spoke, e);
    if (last < 0)
        return 0;
    if (!WIFSIGNALED(r->status[last]))
        return blame_status(r, last, e);
    blame_signal(r->p->command[last].argv[0], SIGPIPE, e);
    if (last < r->p->n - 1 || r->p->out >= 0)
        return e->code;
    e->told = true; /* who read our output has gone, and knows it */
    return -(128 + SIGPIPE);
}

/* ---- pipes_run() ---- */

static int run(struct runner *r, int signals, const sigset_t *before,
               struct err *e)
{
    struct pipes *p = r->p;
    int why[2] = { -1, -1 }, rc;

    if (p->captured && pipe2(why, O_CLOEXEC))
        return err_set(e, E_TEMP, "pipe:");
    r->why.fd = why[0];
    rc = start_all(r, why[1], before, e);
    close_all(why + 1, 1);
    close_all(&p->report_end, 1);
    close_all(&p->ledger, 1);
    close_all(&p->along, 1);
    close_all(&p->along_end, 1);
    if (rc)
        end_all(r);
    follow(r, signals);
    close_all(why, 1);
    return rc ? rc : blame(r, e);
}

int signals_open(sigset_t *before)
{
    sigset_t caught;

    sigemptyset(&caught);
    sigaddset(&caught, SIGCHLD);
    sigaddset(&caught, SIGTERM);
    sigaddset(&caught, SIGINT);
    sigaddset(&caught, SIGHUP);
    sigprocmask(SIG_BLOCK, &caught, before);
    return signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK);
}

int pipes_run(struct pipes *p, struct err *e)
{
    struct runner r = { .p = p, .ring = first_pipe(p) };
    sigset_t before;
    int signals, rc;

    r.report = (struct lines){ p->report, mem_alloc(LINE_CAP, "pipe", e), 0,
                               p->line, p->ctx };
    r.why = (struct lines){ -1, mem_alloc(LINE_CAP, "pipe", e), 0, keep_reason,
                            &r };
    signals = signals_open(&before);
    if (!r.report.text || !r.why.text || signals < 0)
        rc = err_set(e, E_TEMP, "no memory for a pipe");
    else
        rc = run(&r, signals, &before, e);
    close_all(&signals, 1);
    close_all(&p->report, 1);
    sigprocmask(SIG_SETMASK, &before, NULL);
    free(r.report.text);
    free(r.why.text);
    return rc;
}
