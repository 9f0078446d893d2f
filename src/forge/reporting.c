/* reporting.c - forge report: evaluate on a text where that is asked for, then
 * forge-report. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "forge/arguments.h"
#include "forge/command.h"
#include "forge/job.h"
#include "forge/look.h"
#include "report/outputs.h"
#include "report/peers.h"

/* A checkpoint beside the run: "NAME=PATH", of a checkpoint or of its figures. */
struct compared {
    const char *given, *path;
    bool evaluate;
    char word[2 * PATH_MAX + 192]; /* NAME=FILE for forge-report */
    const char *made;              /* that FILE, if it is made here, or NULL */
};

enum { OPTIONS = 7 + PEERS_MAX };

struct reporting {
    struct reading r;
    const char *work;
    const char *output, *json, *csv, *beside, *hitmap, *title;
    struct opt_list list;
    struct compared compared[PEERS_MAX];
    char figures[PATH_MAX + 128]; /* the run's, kept in WORK */
    char *word[OPTIONS];          /* "--NAME=VALUE" for forge-report */
    int words;
};

static int want_directory(const char *path, struct err *e)
{
    struct stat st;

    if (stat(path, &st) || !S_ISDIR(st.st_mode))
        return err_set(e, E_NOINPUT, "'%s': no such directory", path);
    return 0;
}

static int parse(struct reporting *t, int argc, char **argv, struct err *e)
{
    const struct opt table[] = {
        { OPT_OUTPUT, 'o', "output", "FILE",
          "write the page to FILE [standard output]", &t->output, 0, 0, true },
        { OPT_LIST, 0, "text", "FILE", "evaluate on FILE first, layer by layer",
          &t->r.texts, 0, 0, false },
        { OPT_INT, 0, "sequences", "N", "sequences of it [24]", &t->r.sequences,
          1, 1000000, false },
        { OPT_INT, 0, "seqlen", "T", "tokens in each [512]", &t->r.seqlen, 2,
          1000000, false },
        { OPT_LIST, 0, "compare", "NAME=PATH",
          "show another checkpoint's KL, too: a directory, to evaluate on the "
          "text of --text, or what forge eval --json printed of it",
          &t->list, 0, 0, false },
        { OPT_STR, 0, "json", "FILE", "write all that is shown as JSON, too",
          &t->json, 0, 0, true },
        { OPT_STR, 0, "csv", "FILE", "write the linear layers as CSV, too",
          &t->csv, 0, 0, true },
        { OPT_STR, 0, "beside", "WORK", "show the loss of another run, too",
          &t->beside, 0, 0, true },
        { OPT_STR, 0, "hitmap", "FILE",
          "hit maps of another pass, to compare the run's with", &t->hitmap, 0,
          0, true },
        { OPT_STR, 0, "title", "TEXT", "what the page calls the model",
          &t->title, 0, 0, true },
        COMMAND_COMMON(&t->r.threads, &t->r.progress, &t->r.quiet),
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    int i = opt_parse(argc, argv, "report WORK [-o FILE] [--text FILE]",
                      "Make an HTML page about a run.", table);

    if (argc - i != 1)
        return err_set(e, E_USAGE, "want WORK (try --help)");
    t->work = argv[i];
    if (outputs_check(t->output, t->json, t->csv, e) < 0)
        return e->code;
    return only_text(&t->r.texts, &t->r.text, e);
}

/* ---- before any work ---- */

static int settle_one(struct reporting *t, struct compared *c, struct err *e)
{
    struct stat st;

    c->path = peers_file(c->given);
    if (!c->path)
        return err_set(e, E_USAGE, "--compare '%s': want NAME=PATH", c->given);
    if (stat(c->path, &st))
        return err_set(e, E_NOINPUT, "'%s': no such file or directory",
                       c->path);
    c->evaluate = S_ISDIR(st.st_mode);
    if (c->evaluate && !t->r.text)
        return err_set(e, E_USAGE,
                       "--compare '%s': a directory wants --text (try --help)",
                       c->given);
    if (c->evaluate && !strcmp(t->r.text, "-"))
        return err_set(e, E_USAGE,
                       "--compare: standard input can be read once: want "
                       "--text FILE");
    snprintf(c->word, sizeof(c->word), "%s", c->given);
    return 0;
}

static int settle(struct reporting *t, struct err *e)
{
    if (t->list.count > PEERS_MAX)
        return err_set(e, E_USAGE, "--compare: more than %d", PEERS_MAX);
    for (int i = 0; i < t->list.count; i++) {
        t->compared[i].given = t->list.item[i];
        if (peers_new(t->list.item, i, e) < 0 ||
            settle_one(t, &t->compared[i], e) < 0)
            return e->code;
    }
    return 0;
}

/* ---- evaluations ---- */

/* Run forge-eval; the result goes to the file tmp. */
static int evaluate(struct reading *r, const char *model, const char *other,
                    bool by_layer, const char *tmp, struct err *e)
{
    struct command *c;
    struct pipes p;
    int rc;

    if (look_models(model, other, "--text", e) < 0)
        return e->code;
    pipes_init(&p);
    c = look_eval(r, &p, model);
    if (by_layer)
        command_add(c, "--by-layer", NULL);
    command_add(c, "--json", model, other, NULL);
    p.out = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (p.out < 0)
        return err_set(e, E_CREATE, "'%s': cannot be created:", tmp);
    rc = pipes_run(&p, e);
    close(p.out);
    if (rc)
        unlink(tmp);
    return rc;
}

/* The run's own result is kept in WORK beside the codes.  A GGUF file was made of
 * a checkpoint in WORK, which has the same weights. */
static int evaluate_run(struct reporting *t, const struct job *j, struct err *e)
{
    char packed[PATH_MAX + STAGE_DIR], P[STAGE_DIR];
    char tmp[PATH_MAX + 192];
    const char *out = j->out;
    int rc;

    if (j->layout == JOB_GGUF) {
        snprintf(packed, sizeof(packed), "%s/%s", t->work,
                 job_packed_dir(j, P));
        out = packed;
    }
    if (check_text(t->r.text, e) < 0 || want_directory(j->model, e) < 0 ||
        want_directory(out, e) < 0)
        return e->code;
    snprintf(tmp, sizeof(tmp), "%s.tmp.%ld.report", t->figures, (long)getpid());
    rc = evaluate(&t->r, j->model, out, true, tmp, e);
    if (!rc && rename(tmp, t->figures)) {
        rc = err_set(e, E_CREATE, "'%s': cannot be created:", t->figures);
        unlink(tmp);
    }
    return rc;
}

static int evaluate_compared(struct reporting *t, const struct job *j,
                             struct err *e)
{
    char S[STAGE_DIR];
    int rc = 0;

    for (int i = 0; !rc && i < t->list.count; i++) {
        struct compared *c = &t->compared[i];

        if (!c->evaluate)
            continue;
        snprintf(c->word, sizeof(c->word),
                 "%.*s%s/%s/by-layer-compare-%d.jsonl.tmp.%ld.report",
                 (int)(c->path - c->given), c->given, t->work,
                 job_solve_dir(j, S), i, (long)getpid());
        c->made = c->word + (c->path - c->given);
        rc = evaluate(&t->r, j->model, c->path, false, c->made, e);
    }
    return rc;
}

static int evaluate_all(struct reporting *t, struct err *e)
{
    char S[STAGE_DIR];
    struct job j;
    int rc;

    if (job_read(&j, t->work, e) < 0)
        return e->code;
    snprintf(t->figures, sizeof(t->figures), "%s/%s/by-layer-%s.jsonl", t->work,
             job_solve_dir(&j, S), job_layout_name(&j));
    rc = settle(t, e);
    if (!rc && t->r.text)
        rc = evaluate_run(t, &j, e);
    if (!rc)
        rc = evaluate_compared(t, &j, e);
    job_release(&j);
    return rc;
}

/* ---- the page ---- */

/* In one word: a value may begin with "--". */
static int option(struct reporting *t, struct command *c, const char *name,
                  const char *value, struct err *e)
{
    if (!value)
        return 0;
    if (asprintf(&t->word[t->words], "--%s=%s", name, value) < 0) {
        t->word[t->words] = NULL;
        return err_set(e, E_TEMP, "report: out of memory");
    }
    command_add(c, t->word[t->words++], NULL);
    return 0;
}

static int page(struct reporting *t, struct err *e)
{
    struct command *c;
    struct pipes p;

    pipes_init(&p);
    c = pipes_add(&p, "forge-report");
    if (!access(t->figures, F_OK) && option(t, c, "eval", t->figures, e) < 0)
        return e->code;
    for (int i = 0; i < t->list.count; i++)
        if (option(t, c, "compare", t->compared[i].word, e) < 0)
            return e->code;
    if (option(t, c, "output", t->output, e) < 0 ||
        option(t, c, "json", t->json, e) < 0 ||
        option(t, c, "csv", t->csv, e) < 0 ||
        option(t, c, "beside", t->beside, e) < 0 ||
        option(t, c, "hitmap", t->hitmap, e) < 0 ||
        option(t, c, "title", t->title, e) < 0)
        return e->code;
    command_add(c, "--", t->work, NULL);
    return pipes_run(&p, e);
}

int command_report(int argc, char **argv, struct err *e)
{
    struct reporting *t = mem_zero(1, sizeof(*t), "report", e);
    int rc;

    if (!t)
        return e->code;
    t->r.sequences = 24;
    t->r.seqlen = 512;
    rc = parse(t, argc, argv, e);
    if (!rc)
        rc = evaluate_all(t, e);
    if (!rc)
        rc = page(t, e);
    for (int i = 0; i < PEERS_MAX; i++)
        if (t->compared[i].made)
            unlink(t->compared[i].made);
    for (int i = 0; i < t->words; i++)
        free(t->word[i]);
    free(t);
    return rc;
}
