/* making.c - writes the settings, runs make, follows the reports of its steps,
 * and prints the result; see request.h. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/io/file.h"
#include "forge/env.h"
#include "forge/follow.h"
#include "forge/meter.h"
#include "forge/summary.h"
#include "forge/variables.h"

enum { LOOK_MS = 100 };

static bool ready(void *ctx, int fd)
{
    return follow_read(ctx, fd);
}

static void tick(void *ctx)
{
    follow_draw(ctx);
}

static int write_meter(const struct request *r, const struct meter *m,
                       struct err *e)
{
    char path[PATH_MAX + 16], text[160];
    int n = snprintf(text, sizeof(text),
                     "{\"seconds\":%.3f,\"peak_bytes\":%llu,\"status\":%d}\n",
                     m->seconds, (unsigned long long)m->peak, m->status);

    snprintf(path, sizeof(path), "%s/meter.json", r->work_path);
    return publish_text(path, text, (size_t)n, e);
}

/* The error of a failed make without a step's report: the last line of
 * forge-run in make's log, with what its launcher said, else the log's path. */
static int blame_log(const struct request *r, int status, struct err *e)
{
    char path[PATH_MAX + 16], *text, *line, *said = NULL;
    const char *other = NULL, *before = NULL; /* as srun's or ssh's own */
    size_t len;

    snprintf(path, sizeof(path), "%s/make.log", r->work_path);
    if (!file_slurp(&text, &len, path, 1 << 24, e)) {
        for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
            if (!strncmp(line, "forge-run: ", 11)) {
                said = line;
                before = other;
            } else if (strncmp(line, "make", 4) != 0) {
                other = line;
            }
        err_set(e, E_TEMP, "%s%s%s", said ? said : "", before ? ": " : "",
                before ? before : "");
        free(text);
        if (said)
            return e->code;
    }
    return err_set(e, E_TEMP, "make ended with %d: '%s'", status, path);
}

/* What the user can do after a run that was stopped, behind how it was.  A step may have
 * published OUT, which did not exist before: then there is nothing to go on with. */
static void add_advice(const struct request *r, struct err *e)
{
    char how[sizeof(e->msg)];

    memcpy(how, e->msg, sizeof(how));
    if (access(r->j.out, F_OK))
        err_set(e, E_TEMP, "%s; the same command continues", how);
    else if (r->place.temporary)
        err_set(e, E_TEMP,
                "%s; '%s' is complete, and 'forge gc %s' removes the rest", how,
                r->out, r->work_path);
    else
        err_set(e, E_TEMP, "%s; '%s' is complete", how, r->out);
}

/* The outcome as a return value, its message in *e. */
static int outcome(const struct request *r, const struct follow *f,
                   const struct meter *m, struct err *e)
{
    if (!m->status)
        return 0;
    if (m->signalled)
        err_set(e, E_TEMP, "stopped");
    else if (m->killed)
        err_set(e, E_TEMP, "make was killed by signal %d", m->killed);
    else if (f->failed)
        err_set(e, f->failed, "%s", f->reason[0] ? f->reason : "a step failed");
    else
        blame_log(r, m->status, e);
    if (m->signalled || m->killed)
        add_advice(r, e);
    return m->signalled ? -(128 + m->signalled) : e->code;
}

/* Open the pipe that the steps report to, and make's log. */
static int open_watch(const struct request *r, struct follow *f,
                      struct meter_watch *w, struct err *e)
{
    char log[PATH_MAX + 16];
    int fd[2], null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || pipe2(fd, O_CLOEXEC))
        return err_set(e, E_TEMP, "pipe:");
    close(null);
    snprintf(log, sizeof(log), "%s/make.log", r->work_path);
    *w = (struct meter_watch){
        .fd = fd[0], .ready = ready, .tick = tick, .ctx = f, .out = fd[1]
    };
    if (!file_in_place(&w->err, log, O_WRONLY | O_TRUNC | O_CLOEXEC, e))
        return 0;
    close(fd[0]);
    close(fd[1]);
    return e->code;
}

bool make_in_pipe(const struct job *j)
{
    return j->jobs == 1 && !env_away() && j->propagate != PROPAGATE_ORIGINAL;
}

static int run_make(const struct request *r, struct follow *f, struct meter *m,
                    struct err *e)
{
    static char name[] = "make", quiet[] = "-s", in[] = "-C", file[] = "-f",
                here[] = "RUN=", there[] = "RUN=forge-run --";
    char mk[PATH_MAX + 16], jobs[24], dir[PATH_MAX];
    char *argv[8 + JOB_VARIABLES + 1] = {
        name, quiet, in, dir, file, mk, jobs, env_away() ? there : here
    };
    struct job told = r->j;
    struct job_variables v;
    struct meter_watch w;
    int rc;

    if (make_in_pipe(&r->j))
        told.parts = 1; /* the steps know better */
    snprintf(dir, sizeof(dir), "%s", r->work_path);
    snprintf(mk, sizeof(mk), "%s/pipeline.mk", env_libdir());
    snprintf(jobs, sizeof(jobs), "-j%lld", (long long)r->j.jobs);
    if (job_variables(&told, &v, e) < 0)
        return e->code;
    memcpy(argv + 8, v.text, sizeof(v.text));
    rc = open_watch(r, f, &w, e);
    if (!rc) {
        rc = meter_run(argv, LOOK_MS, &w, m, e);
        close(w.fd);
    }
    job_variables_release(&v);
    return rc;
}

static int finish(const struct request *r, struct follow *f,
                  const struct meter *m, struct err *e)
{
    int rc = outcome(r, f, m, e);

    follow_clear(f);
    if (rc)
        return rc;
    if (r->j.search == SEARCH_ABSMAX) { /* all at once, without reports */
        f->done = r->j.modules;
        f->layers_done = r->j.layers;
    }
    if (!r->quiet)
        summary_print(r, &f->records, m->seconds, m->peak);
    return flush_stdout(e) < 0 ? err_prefix(e, "'%s' is complete", r->out) : 0;
}

int make_run(struct request *r, double estimate, struct err *e)
{
    struct meter m = { 0 };
    struct follow f;
    struct err ignored;
    int rc = follow_begin(&f, r, estimate, e);

    if (!rc) {
        r->j.gpu_states = (uint64_t)gpu_room_states(r);
        r->j.before = f.before;
        r->j.seconds = estimate;
        r->j.started = time(NULL);
        rc = job_write(&r->j, r->work_path, e);
    }
    if (!rc)
        rc = run_make(r, &f, &m, e);
    if (!rc && write_meter(r, &m, &ignored) < 0)
        warning("%s",
                ignored.msg); /* the checkpoint is complete nevertheless */
    if (!rc)
        rc = finish(r, &f, &m, e);
    follow_end(&f, -rc, e->msg, rc ? 0 : summary_bytes(r->j.out));
    r->ended = true;
    follow_release(&f);
    return rc;
}
