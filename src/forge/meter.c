/* meter.c - see meter.h. */
#include "forge/meter.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "forge/pipes.h"

enum {
    TREE_MAX = 1024,
    PATH_CAP = 64,
    TEXT_CAP = 8192,
    NOT_FOUND = 127,
    REST = 20 /* times what adding up took */
};

struct tree {
    pid_t pid[TREE_MAX];
    int count;
};

/* Read /proc/PID/name; "" if the process has ended meanwhile. */
static const char *read_proc(pid_t pid, const char *name, char *text)
{
    char path[PATH_CAP];
    size_t n;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    f = fopen(path, "re");
    if (!f)
        return NULL;
    n = fread(text, 1, TEXT_CAP - 1, f);
    text[n] = 0;
    fclose(f);
    return n ? text : NULL;
}

/* List the root process and its descendants, breadth first. */
static void find_tree(struct tree *t, pid_t root)
{
    char text[TEXT_CAP], name[PATH_CAP];

    t->pid[0] = root;
    t->count = 1;
    for (int i = 0; i < t->count; i++) {
        const char *p;

        snprintf(name, sizeof(name), "task/%d/children", (int)t->pid[i]);
        p = read_proc(t->pid[i], name, text);
        while (p && t->count < TREE_MAX) {
            char *end;
            long pid = strtol(p, &end, 10);

            if (end == p)
                break;
            t->pid[t->count++] = (pid_t)pid;
            p = end;
        }
    }
}

static uint64_t resident(const struct tree *t)
{
    char text[TEXT_CAP];
    uint64_t pages = 0, n;

    for (int i = 0; i < t->count; i++)
        if (read_proc(t->pid[i], "statm", text) &&
            sscanf(text, "%*u %" SCNu64, &n) == 1)
            pages += n;
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t proportional(const struct tree *t)
{
    char text[TEXT_CAP];
    uint64_t kib = 0, n;

    for (int i = 0; i < t->count; i++) {
        const char *p = read_proc(t->pid[i], "smaps_rollup", text);

        p = p ? strstr(p, "\nPss:") : NULL;
        if (p && sscanf(p + strlen("\nPss:"), "%" SCNu64, &n) == 1)
            kib += n;
    }
    return kib * 1024;
}

/* Take a sample.  For Pss the kernel walks over all pages, and a process that wants
 * another mapping waits for it.  So it is read only when the sum of resident sizes, a
 * cheap upper bound, is higher than ever, and once a second while that sum is above the
 * peak; and a twentieth of the time at most. */
static void look(struct meter *m, pid_t root)
{
    struct tree t;
    double now = seconds_now(), rest = now - m->looked;
    uint64_t bound;

    find_tree(&t, root);
    bound = resident(&t);
    m->samples++;
    if (rest >= REST * m->took &&
        (bound > m->bound || (bound > m->peak && rest >= 1))) {
        uint64_t sum = proportional(&t);

        if (sum > m->peak)
            m->peak = sum;
        if (bound > m->bound)
            m->bound = bound;
        m->looked = seconds_now();
        m->took = m->looked - now;
    }
}

/* why: a pipe for errno where the command cannot be run. */
NORETURN static void become(char **argv, const struct meter_watch *w,
                            pid_t parent, const sigset_t *mask, int why)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(NOT_FOUND);
    if (w &&
        (dup2(w->out, STDOUT_FILENO) < 0 || dup2(w->err, STDERR_FILENO) < 0))
        _exit(NOT_FOUND);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(argv[0], argv);
    (void)!write(why, &errno, sizeof(errno));
    _exit(NOT_FOUND);
}

/* Reap ended children, which include orphans of the tree.  1: the command has
 * ended. */
static int reap(pid_t child, struct meter *m)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid != child)
            continue;
        m->killed = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        m->status =
            WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return 1;
    }
    return pid < 0 && errno != EINTR;
}

static void watch(pid_t child, int signals, int64_t interval_ms,
                  const struct meter_watch *w, struct meter *m)
{
    struct pollfd p[2] = { { .fd = signals, .events = POLLIN },
                           { .fd = w ? w->fd : -1, .events = POLLIN } };
    double looked = 0, gap = (double)interval_ms / 1000;
    struct signalfd_siginfo s;

    while (!reap(child, m)) {
        if (seconds_now() - looked >= gap) {
            look(m, child);
            looked = seconds_now();
            if (w)
                w->tick(w->ctx);
        }
        if (poll(p, 2, (int)interval_ms) <= 0)
            continue;
        if (p[0].revents &&
            read(signals, &s, sizeof(s)) == (ssize_t)sizeof(s) &&
            s.ssi_signo != SIGCHLD) {
            m->signalled = (int)s.ssi_signo;
            kill(child, w ? SIGTERM : (int)s.ssi_signo);
        }
        if (p[1].revents && !w->ready(w->ctx, w->fd))
            p[1].fd = -1;
    }
    while (p[1].fd >= 0 && w->ready(w->ctx, w->fd))
        ;
}

int meter_run(char **argv, int64_t interval_ms, const struct meter_watch *w,
              struct meter *m, struct err *e)
{
    sigset_t before;
    pid_t self = getpid(), child;
    double start = seconds_now();
    int signals, why[2], errnum, rc = 0;

    *m = (struct meter){ .status = 0 };
    if (pipe2(why, O_CLOEXEC))
        return err_set(e, E_TEMP, "pipe:");
    signals = signals_open(&before);
    if (signals < 0) {
        close(why[0]);
        close(why[1]);
        return err_set(e, E_TEMP, "signalfd:");
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    child = fork();
    if (!child)
        become(argv, w, self, &before, why[1]);
    close(why[1]);
    if (child < 0) {
        close(why[0]);
        close(signals);
        return err_set(e, E_TEMP, "fork:");
    }
    if (w) {
        close(w->out);
        close(w->err);
    }
    watch(child, signals, interval_ms, w, m);
    m->seconds = seconds_now() - start;
    close(signals);
    if (read(why[0], &errnum, sizeof(errnum)) == (ssize_t)sizeof(errnum)) {
        errno = errnum;
        rc = errnum == ENOENT ?
                 err_set(e, E_NOINPUT, "'%s': not found", argv[0]) :
                 err_set(e, E_NOINPUT, "'%s': cannot run:", argv[0]);
    }
    close(why[0]);
    return rc;
}
