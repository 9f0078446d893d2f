/* quantize.c - forge quantize: check everything, write the settings, run make,
 * follow what its steps report. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint/expertmap.h"
#include "common/file.h"
#include "common/threads.h"
#include "driver/command.h"
#include "driver/env.h"
#include "driver/follow.h"
#include "driver/meter.h"
#include "driver/summary.h"
#include "prune/prune.h"

enum { LOOK_MS = 100, NOT_GIVEN = -1 };

/* A short run is not worth half a second of measuring: operations. */
static const double worth_measuring = 2e13;

static void parse(struct request *r, int argc, char **argv)
{
    struct job *j = &r->j;
    const char *device = "auto";
    const struct opt table[] = {
        { OPT_STR, 0, "text", "FILE",
          "calibrate on FILE: text, JSON lines or .npy of ids", &r->text, 0, 0,
          false },
        { OPT_INT, 0, "sequences", "N", "calibration sequences [128]",
          &j->sequences, 1, 1000000, false },
        { OPT_INT, 0, "seqlen", "T", "tokens in each [512]", &j->seqlen, 1,
          1000000, false },
        { OPT_CHOICE, 0, "layout", LAYOUT_WORDS,
          "how the result is stored [compressed-tensors]", &j->layout, 0, 0,
          false },
        { OPT_INT, 0, "group", "G", "inputs per scale [128]", &j->group, 8,
          1048576, false },
        { OPT_FLAG, 0, "sym", NULL,
          "grids with the zero in the middle, the "
          "default",
          &r->sym, 0, 0, false },
        { OPT_FLAG, 0, "asym", NULL, "grids with the zero where it fits",
          &r->asym, 0, 0, false },
        { OPT_CHOICE, 0, "method", METHOD_WORDS,
          "rtn: round to nearest, no data [gptq]", &j->method, 0, 0, false },
        { OPT_CHOICE, 0, "effort", EFFORT_WORDS,
          "how much is tried for each weight [default]", &j->effort, 0, 0,
          false },
        { OPT_CHOICE, 0, "propagate", PROPAGATE_WORDS,
          "calibrate layers on the output of quantized or original layers "
          "before them, or both: on that of quantized ones, made to give what "
          "the original ones give [both; with --effort fast quantized]",
          &j->propagate, 0, 0, false },
        { OPT_INT, 0, "blend", "K",
          "hessians of experts: add their layer's, as if of K tokens for each "
          "input [2]",
          &j->blend, 0, 1000000, false },
        { OPT_STR, 0, "work", "DIR",
          "keep what resuming and reuse need in DIR [OUT.work, removed at the "
          "end]",
          &r->work, 0, 0, false },
        { OPT_INT, 0, "jobs", "N",
          "layers solved at a time, --propagate original [1]", &j->jobs, 1,
          1024, false },
        { OPT_STR, 0, "device", "auto|cpu|cuda[:N]",
          "for all but the forward pass [auto]", &device, 0, 0, false },
        { OPT_SIZE, 0, "gpu-memory", "SIZE",
          "GPU memory that each tool may hold, e.g. 8G [all]", &j->gpu_memory,
          0, 0, false },
        { OPT_SIZE, 0, "shard-size", "SIZE",
          "most bytes in a file of OUT, e.g. 500MB, 2GiB [5GB]", &j->shard_size,
          0, 0, false },
        { OPT_FLAG, 'n', "dry-run", NULL,
          "say what would be done and what it costs", &r->dry_run, 0, 0,
          false },
        { OPT_FLOAT, 0, "rate", "GFLOPS",
          "speed to estimate times with [measured for half a second]", &r->rate,
          1e-3, 1e12, false },
        { OPT_INT, 0, "keep", "K",
          "prune first: experts to keep in each layer of a mixture",
          &r->prune.keep, 1, 65536, false },
        { OPT_CHOICE, 0, "by", PRUNE_WORDS, "... ranked by [tokens]",
          &r->prune.by, 0, 0, false },
        { OPT_CHOICE, 0, "mode", EXPERT_MODES,
          "... into a smaller model, or with a map beside it [prune]",
          &r->prune.mode, 0, 0, false },
        { OPT_STR, 0, "hitmap", "FILE",
          "... by the router's statistics in FILE [gathered on --text]",
          &r->prune.hitmap, 0, 0, false },
        COMMAND_COMMON(&j->threads, &r->progress, &r->quiet),
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    int i =
        opt_parse(argc, argv, "quantize MODEL OUT --text FILE [option]...",
                  "Turn a Hugging Face checkpoint into a 4-bit one.", table);

    r->model = argc - i == 2 ? argv[i] : NULL;
    r->out = argc - i == 2 ? argv[i + 1] : NULL;
    snprintf(j->device, sizeof(j->device), "%s", device);
}

/* What options say together. */
static int settle(struct request *r, struct err *e)
{
    struct job *j = &r->j;

    if (!r->model)
        return err_set(e, E_USAGE, "want MODEL and OUT (try --help)");
    if (r->sym && r->asym)
        return err_set(e, E_USAGE, "--sym and --asym exclude each other");
    if (!*r->model || !*r->out || (r->work && !*r->work))
        return err_set(e, E_USAGE, "a path is empty");
    j->symmetric = !r->asym;
    if (j->propagate == PROPAGATE_BOTH && j->effort == EFFORT_FAST)
        return err_set(e, E_USAGE,
                       "--propagate both is nothing for --effort fast");
    if (j->propagate == NOT_GIVEN)
        j->propagate =
            j->effort == EFFORT_FAST ? PROPAGATE_QUANTIZED : PROPAGATE_BOTH;
    r->prune.text = r->text;
    r->prune.sequences = j->sequences;
    r->prune.seqlen = j->seqlen;
    r->prune.threads = j->threads;
    r->prune.shard_size = j->shard_size;
    r->prune.quiet = r->quiet;
    verbosity = r->quiet ? -1 : 0;
    threads_set(j->threads);
    return 0;
}

static int check(struct request *r, struct err *e)
{
    if (check_paths(r, e) < 0 ||
        (r->prune.keep && prune_check(&r->prune, r->j.model, e) < 0) ||
        check_model(r, e) < 0 || check_device(&r->j, e) < 0 ||
        check_launch(e) < 0)
        return e->code;
    return check_tools(e);
}

/* --keep: what is quantized is a pruned model, made in the work directory, its
 * name a key of what it comes from. */
static int prune(struct request *r, struct err *e)
{
    int rc;

    if (keys_pruned(r, e) < 0)
        return e->code;
    rc = access(r->pruned, F_OK) ?
             prune_make(&r->prune, r->j.model, r->pruned, e) :
             0;
    if (rc)
        return rc;
    strcpy(r->j.model, r->pruned);
    return check_model(r, e);
}

/* ---- make ---- */

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

/* The last word of forge-run in make's log, else where that is. */
static int blame_log(const struct request *r, int status, struct err *e)
{
    char path[PATH_MAX + 16], *text, *line, *said = NULL;
    size_t len;

    snprintf(path, sizeof(path), "%s/make.log", r->work_path);
    if (!file_slurp(&text, &len, path, 1 << 24, e)) {
        for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
            if (!strncmp(line, "forge-run: ", 11))
                said = line;
        err_set(e, E_TEMP, "%s", said ? said : "");
        free(text);
        if (said)
            return e->code;
    }
    return err_set(e, E_TEMP, "make ended with %d: '%s'", status, path);
}

/* What ended it, once. */
static int outcome(const struct request *r, struct follow *f,
                   const struct meter *m, struct err *e)
{
    if (!m->status)
        return 0;
    if (m->signalled)
        err_set(e, E_TEMP, "stopped; the same command continues");
    else if (m->killed)
        err_set(e, E_TEMP,
                "make was killed by signal %d; the same command continues",
                m->killed);
    else if (f->failed)
        err_set(e, f->failed, "%s", f->reason[0] ? f->reason : "a step failed");
    else
        blame_log(r, m->status, e);
    snprintf(f->reason, sizeof(f->reason), "%s", e->msg);
    return m->signalled ? -(128 + m->signalled) : e->code;
}

/* The pipe that steps report to, and make's log. */
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
    w->err = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->err >= 0)
        return 0;
    err_set(e, E_CREATE, "'%s':", log);
    close(fd[0]);
    close(fd[1]);
    return e->code;
}

static int run_make(const struct request *r, struct follow *f, struct meter *m,
                    struct err *e)
{
    static char name[] = "make", quiet[] = "-s", in[] = "-C", file[] = "-f",
                here[] = "RUN=", there[] = "RUN=forge-run --";
    char mk[PATH_MAX + 16], jobs[24], dir[PATH_MAX];
    const char *launch = env_text("FORGE_LAUNCH");
    bool away =
        (*launch && strcmp(launch, "local") != 0) || *env_text("FORGE_RETRIES");
    char *argv[8 + JOB_VARIABLES + 1] = {
        name, quiet, in, dir, file, mk, jobs, away ? there : here
    };
    struct job_variables v;
    struct meter_watch w;
    int rc;

    snprintf(dir, sizeof(dir), "%s", r->work_path);
    snprintf(mk, sizeof(mk), "%s/pipeline.mk", env_libdir());
    snprintf(jobs, sizeof(jobs), "-j%lld", (long long)r->j.jobs);
    if (job_variables(&r->j, &v, e) < 0)
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

/* ---- all ---- */

static int finish(const struct request *r, struct follow *f,
                  const struct meter *m, struct err *e)
{
    int rc = outcome(r, f, m, e);

    follow_clear(f);
    follow_end(f, -(rc < -128 ? E_TEMP : rc), rc ? 0 : summary_bytes(r->j.out));
    if (rc)
        return rc;
    if (!r->quiet)
        summary_print(r, &f->records, m->seconds, m->peak);
    return fflush(stdout) ? err_set(e, E_IO, "standard output:") : 0;
}

static int make(struct request *r, double estimate, struct err *e)
{
    struct meter m = { 0 };
    struct follow f;
    struct err ignored;
    int rc = follow_begin(&f, r, estimate, e);

    if (!rc) {
        r->j.before = f.before;
        r->j.seconds = estimate;
        r->j.started = time(NULL);
        rc = job_write(&r->j, r->work_path, e);
    }
    if (!rc)
        rc = run_make(r, &f, &m, e);
    if (!rc && write_meter(r, &m, &ignored) < 0)
        warning("%s", ignored.msg); /* the result is there all the same */
    if (!rc)
        rc = finish(r, &f, &m, e);
    follow_release(&f);
    return rc;
}

/* In the work directory, which is ours from here on. */
static int work(struct request *r, struct err *e)
{
    struct room room;
    int rc;

    place_collect(&r->place, true);
    if (r->prune.keep && (rc = prune(r, e)))
        return rc;
    room_plan(r, false, &room);
    if (room_check(r, &room, e) < 0 || keys_make(r, e) < 0)
        return e->code;
    if (room.flops[r->j.effort] > worth_measuring && !r->quiet)
        room_plan(r, true, &room);
    return make(r, room.seconds[r->j.effort], e);
}

static int run(struct request *r, struct err *e)
{
    struct room room;
    int rc;

    room_plan(r, r->dry_run, &room);
    if (r->dry_run) {
        room_print(r, &room);
        return fflush(stdout) ? err_set(e, E_IO, "standard output:") : 0;
    }
    if (room_check(r, &room, e) < 0 ||
        place_open(&r->place, r->work_path, r->work != NULL, e) < 0)
        return e->code;
    rc = work(r, e);
    if (!rc && r->place.temporary)
        place_remove(&r->place);
    place_close(&r->place);
    return rc;
}

int command_quantize(int argc, char **argv, struct err *e)
{
    struct request *r = mem_zero(1, sizeof(*r), "quantize", e);
    int rc;

    if (!r)
        return e->code;
    r->place.lock = -1;
    r->j.sequences = 128;
    r->j.seqlen = 512;
    r->j.group = 128;
    r->j.blend = 2;
    r->j.jobs = 1;
    r->j.effort = EFFORT_DEFAULT;
    r->j.propagate = NOT_GIVEN;
    r->j.shard_size = SHARD_SIZE;
    parse(r, argc, argv);
    rc = settle(r, e);
    if (!rc)
        rc = check(r, e);
    if (!rc)
        rc = run(r, e);
    plan_release(&r->plan);
    job_release(&r->j);
    free(r);
    return rc;
}
