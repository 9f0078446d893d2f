/* mps.c - see mps.h. */
#include "forge/mps.h"

#include <fcntl.h>
#include <signal.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "forge/env.h"

#define PROGRAM "nvidia-cuda-mps-control"
#define PIPES   "CUDA_MPS_PIPE_DIRECTORY"
#define LOGS    "CUDA_MPS_LOG_DIRECTORY"
#define USERS   "/tmp/nvidia-mps" /* where one is without these */
#define OURS    "/tmp/forge-mps"  /* short: a socket's path */

enum { STARTS_MS = 2000, ENDS_MS = 5000, STEP_MS = 5 };

static bool has_ended(const struct mps *m)
{
    return waitpid(m->control, NULL, WNOHANG) != 0;
}

static bool is_there(const struct mps *m)
{
    char socket[PATH_MAX];

    snprintf(socket, sizeof(socket), "%s/control", m->dir.path);
    return !access(socket, F_OK);
}

/* In the child.  In a group of its own, since it outlives a Ctrl-C by the processes
 * that it serves. */
static _Noreturn void become_control(pid_t parent)
{
    int null = open("/dev/null", O_RDWR);

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent || null < 0 || dup2(null, 0) < 0 ||
        dup2(null, 1) < 0 || dup2(null, 2) < 0)
        _exit(1);
    execlp(PROGRAM, PROGRAM, "-f", (char *)NULL);
    _exit(127);
}

static void leave(struct mps *m)
{
    unsetenv(PIPES);
    unsetenv(LOGS);
    tmpdir_release(&m->dir);
    *m = (struct mps){ 0 };
}

void mps_start(struct mps *m)
{
    static const char *const marks[] = { "control_lock", NULL };
    pid_t parent = getpid();
    struct err ignored;

    tmpdir_remove_stale(OURS, marks);
    if (!strcmp(env_text("FORGE_MPS"), "0") || *env_text(PIPES) ||
        !access(USERS, F_OK) || tmpdir_make(&m->dir, OURS, &ignored) < 0)
        return;
    setenv(PIPES, m->dir.path, 1);
    setenv(LOGS, m->dir.path, 1);
    m->control = fork();
    if (!m->control)
        become_control(parent);
    for (int ms = 0; m->control > 0 && !has_ended(m); ms += STEP_MS) {
        if (is_there(m))
            return;
        if (ms == STARTS_MS)
            kill(m->control, SIGKILL);
        usleep(STEP_MS * 1000);
    }
    leave(m);
}

void mps_end(struct mps *m)
{
    if (!m->control)
        return;
    (void)!system("echo quit | " PROGRAM " >/dev/null 2>&1");
    for (int ms = 0; !has_ended(m); ms += STEP_MS) {
        if (ms == ENDS_MS)
            kill(m->control, SIGKILL);
        usleep(STEP_MS * 1000);
    }
    leave(m);
}
