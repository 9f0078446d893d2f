/* look.c - forge eval, forge tokens and forge report: pipes of tools that begin
 * with a text. */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "forge/arguments.h"
#include "common/io/file.h"
#include "common/io/json.h"
#include "common/io/sha256.h"
#include "forge/command.h"
#include "forge/pipes.h"
#include "forge/request.h"
#include "shard/cardeval.h"

enum { CHUNK = 1 << 20, RESULT_MAX = 1 << 14 };

/* Options about the text, and about running tools. */
struct reading {
    const char *text;
    int64_t sequences, seqlen, threads;
    int progress, quiet;
    char word[5][WORD];
};

/* Add forge-tokens and forge-eval to the pipe; returns the latter. */
static struct command *comparison(struct reading *r, struct pipes *p,
                                  const char *model)
{
    struct command *c = pipes_add(p, "forge-tokens");

    command_add(c, "-q", "--sequences", number_word(r->word[0], r->sequences),
                "--seqlen", number_word(r->word[1], r->seqlen), model, r->text,
                NULL);
    c = pipes_add(p, "forge-eval");
    command_add(c, "--threads", number_word(r->word[2], r->threads),
                "--progress", opt_word(PROGRESS_WORDS, r->progress, r->word[3]),
                NULL);
    if (r->quiet)
        command_add(c, "-q", NULL);
    return c;
}

/* ---- forge eval --card ---- */

/* The result of forge-eval, and the digest of the text. */
struct finding {
    char line[RESULT_MAX], sha256[SHA256_HEX + 1];
};

static void take_finding(void *ctx, const char *text, size_t len)
{
    struct finding *f = ctx;

    if (len < sizeof(f->line)) {
        memcpy(f->line, text, len);
        f->line[len] = 0;
    }
}

static int digest_text(struct finding *f, const char *path, struct err *e)
{
    struct sha256 *sha = NULL;
    struct file *in;
    void *buf;
    int rc = file_open(&in, AT_FDCWD, path, e);

    if (rc)
        return rc;
    buf = mem_alloc(CHUNK, path, e);
    rc = buf ? sha256_open(&sha, e) : e->code;
    for (uint64_t at = 0; !rc && at < file_size(in); at += CHUNK) {
        uint64_t left = file_size(in) - at;
        size_t n = left < CHUNK ? (size_t)left : CHUNK;

        rc = file_read(in, buf, n, at, e);
        if (!rc)
            sha256_add(sha, buf, n);
    }
    if (!rc)
        sha256_hex(sha, f->sha256);
    sha256_close(sha);
    free(buf);
    file_close(in);
    return rc;
}

static int put_card(const struct finding *f, const char *dir, struct err *e)
{
    struct json_doc *d;
    int rc = json_parse(&d, f->line, strlen(f->line), "forge-eval", e);

    if (rc)
        return rc;
    rc = card_eval(dir, json_root(d), f->sha256, e);
    json_free(d);
    return rc;
}

int command_eval(int argc, char **argv, struct err *e)
{
    struct reading r = { .sequences = 24, .seqlen = 512 };
    double ratio = 0;
    int json = 0, card = 0;
    const struct opt table[] = {
        { OPT_STR, 0, "text", "FILE", "text to evaluate on", &r.text, 0, 0,
          false },
        { OPT_INT, 0, "sequences", "N", "sequences to cut [24]", &r.sequences,
          1, 1000000, false },
        { OPT_INT, 0, "seqlen", "T", "tokens in each [512]", &r.seqlen, 2,
          1000000, false },
        { OPT_FLAG, 0, "json", NULL, "print one JSON object", &json, 0, 0,
          true },
        { OPT_FLAG, 0, "card", NULL,
          "put the result into the model card of OTHER, too", &card, 0, 0,
          false },
        { OPT_FLOAT, 0, "max-ppl-ratio", "X",
          "exit 1 if the perplexity grows by more", &ratio, 1e-6, 1e6, false },
        COMMAND_COMMON(&r.threads, &r.progress, &r.quiet),
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    int i = opt_parse(argc, argv, "eval ORIGINAL OTHER --text FILE [option]...",
                      "Compare two checkpoints of a model on a text.", table);
    char place[2][PATH_MAX];
    const char *model[2];
    struct finding found = { "", "" };
    struct command *c;
    char report[32];
    struct pipes p;
    int rc;

    if (argc - i != 2)
        return err_set(e, E_USAGE, "want ORIGINAL and OTHER (try --help)");
    model[0] = argv[i];
    model[1] = argv[i + 1];
    if (find_model(&model[0], place[0], e) < 0 ||
        find_model(&model[1], place[1], e) < 0 || check_text(r.text, e) < 0 ||
        (card && card_eval_check(model[1], e) < 0))
        return e->code;
    if (card && !strcmp(r.text, "-"))
        return err_set(e, E_USAGE,
                       "--card names the text's digest: want "
                       "--text FILE");
    pipes_init(&p);
    p.line = take_finding;
    p.ctx = &found;
    if (card &&
        (digest_text(&found, r.text, e) < 0 || pipes_report(&p, report, e) < 0))
        return e->code;
    c = comparison(&r, &p, model[0]);
    if (card) {
        c->writes_report = true;
        command_add(c, "--report", report, NULL);
    }
    if (json)
        command_add(c, "--json", NULL);
    if (ratio > 0) {
        snprintf(r.word[4], WORD, "%.17g", ratio);
        command_add(c, "--max-ppl-ratio", r.word[4], NULL);
    }
    command_add(c, model[0], model[1], NULL);
    rc = pipes_run(&p, e);
    if (card && rc >= 0 && put_card(&found, model[1], e) < 0)
        rc = e->code;
    return rc;
}

int command_tokens(int argc, char **argv, struct err *e)
{
    struct reading r = { .sequences = 128, .seqlen = 512 };
    int64_t skip = 0;
    int ids = 0;
    const struct opt table[] = {
        { OPT_STR, 0, "text", "FILE", "the text [standard input]", &r.text, 0,
          0, false },
        { OPT_INT, 0, "sequences", "N", "sequences to cut [128]", &r.sequences,
          1, 1000000, false },
        { OPT_INT, 0, "seqlen", "T", "tokens in each [512]", &r.seqlen, 1,
          1000000, false },
        { OPT_INT, 0, "skip-chars", "N", "leave out the first N characters",
          &skip, 0, 9e15, false },
        { OPT_FLAG, 0, "ids", NULL, "decimal ids, one sequence a line", &ids, 0,
          0, false },
        COMMAND_COMMON(&r.threads, &r.progress, &r.quiet),
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    int i = opt_parse(argc, argv, "tokens MODEL [option]... [< TEXT]",
                      "Write the tokens of a text.", table);
    const char *model = argv[i];
    char place[PATH_MAX];
    struct command *c;
    struct pipes p;

    if (argc - i != 1)
        return err_set(e, E_USAGE, "want MODEL (try --help)");
    if (find_model(&model, place, e) < 0)
        return e->code;
    pipes_init(&p);
    c = pipes_add(&p, "forge-tokens");
    if (ids)
        command_add(c, "--ids", NULL);
    else
        command_add(c, "--sequences", number_word(r.word[0], r.sequences),
                    "--seqlen", number_word(r.word[1], r.seqlen), NULL);
    if (skip)
        command_add(c, "--skip-chars", number_word(r.word[2], skip), NULL);
    if (r.quiet)
        command_add(c, "-q", NULL);
    command_add(c, model, r.text, NULL);
    return pipes_run(&p, e);
}

/* ---- report ---- */

static int want_directory(const char *path, struct err *e)
{
    struct stat st;

    if (stat(path, &st) || !S_ISDIR(st.st_mode))
        return err_set(e, E_NOINPUT, "'%s': no such directory", path);
    return 0;
}

/* Run forge-eval; its result is kept in WORK beside the codes.  A GGUF file was
 * made of a checkpoint in WORK, which has the same weights. */
static int evaluate(struct reading *r, const struct job *j, const char *work,
                    const char *figures, struct err *e)
{
    char packed[PATH_MAX + STAGE_DIR], P[STAGE_DIR];
    const char *out = j->out;
    char tmp[PATH_MAX + 192];
    struct command *c;
    struct pipes p;
    int rc;

    if (j->layout == JOB_GGUF) {
        snprintf(packed, sizeof(packed), "%s/%s", work, job_packed_dir(j, P));
        out = packed;
    }
    if (check_text(r->text, e) < 0 || want_directory(j->model, e) < 0 ||
        want_directory(out, e) < 0)
        return e->code;
    snprintf(tmp, sizeof(tmp), "%s.tmp.%ld.report", figures, (long)getpid());
    pipes_init(&p);
    c = comparison(r, &p, j->model);
    command_add(c, "--by-layer", "--json", j->model, out, NULL);
    p.out = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (p.out < 0)
        return err_set(e, E_CREATE, "'%s': cannot be created:", figures);
    rc = pipes_run(&p, e);
    close(p.out);
    if (!rc && rename(tmp, figures))
        rc = err_set(e, E_CREATE, "'%s': cannot be created:", figures);
    if (rc)
        unlink(tmp);
    return rc;
}

int command_report(int argc, char **argv, struct err *e)
{
    struct reading r = { .sequences = 24, .seqlen = 512 };
    const char *output = NULL, *beside = NULL, *hitmap = NULL, *title = NULL;
    const struct opt table[] = {
        { OPT_STR, 'o', "output", "FILE",
          "write the page to FILE [standard output]", &output, 0, 0, true },
        { OPT_STR, 0, "text", "FILE", "evaluate on FILE first, layer by layer",
          &r.text, 0, 0, false },
        { OPT_INT, 0, "sequences", "N", "sequences of it [24]", &r.sequences, 1,
          1000000, false },
        { OPT_INT, 0, "seqlen", "T", "tokens in each [512]", &r.seqlen, 2,
          1000000, false },
        { OPT_STR, 0, "beside", "WORK", "show the loss of another run, too",
          &beside, 0, 0, true },
        { OPT_STR, 0, "hitmap", "FILE",
          "hit maps of another pass, to compare the run's with", &hitmap, 0, 0,
          true },
        { OPT_STR, 0, "title", "TEXT", "what the page calls the model", &title,
          0, 0, true },
        COMMAND_COMMON(&r.threads, &r.progress, &r.quiet),
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    int i = opt_parse(argc, argv, "report WORK [-o FILE] [--text FILE]",
                      "Make an HTML page about a run.", table);
    char figures[PATH_MAX + 128], S[STAGE_DIR];
    struct command *c;
    struct pipes p;
    struct job j;

    if (argc - i != 1)
        return err_set(e, E_USAGE, "want WORK (try --help)");
    if (job_read(&j, argv[i], e) < 0)
        return e->code;
    snprintf(figures, sizeof(figures), "%s/%s/by-layer-%s.jsonl", argv[i],
             job_solve_dir(&j, S), job_layout_name(&j));
    job_release(&j);
    if (r.text && evaluate(&r, &j, argv[i], figures, e) < 0)
        return e->code;
    pipes_init(&p);
    c = pipes_add(&p, "forge-report");
    if (!access(figures, F_OK))
        command_add(c, "--eval", figures, NULL);
    if (output)
        command_add(c, "-o", output, NULL);
    if (beside)
        command_add(c, "--beside", beside, NULL);
    if (hitmap)
        command_add(c, "--hitmap", hitmap, NULL);
    if (title)
        command_add(c, "--title", title, NULL);
    command_add(c, "--", argv[i], NULL);
    return pipes_run(&p, e);
}
