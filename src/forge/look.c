/* look.c - forge eval and forge tokens: pipes of tools that begin with a text;
 * see look.h. */
#include "forge/look.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "common/io/json.h"
#include "forge/arguments.h"
#include "forge/command.h"
#include "forge/request.h"
#include "shard/cardeval.h"

enum { RESULT_MAX = 1 << 14 };

/* *headless: set if it has no output head, and none tied to the embedding. */
static int look_model(const char *dir, bool *headless, struct err *e)
{
    struct model_config config;
    struct checkpoint *c = NULL;
    int rc = model_config_read(&config, dir, e);

    if (rc)
        return rc;
    rc = checkpoint_open(&c, dir, e);
    if (!rc && checkpoint_headless(c) && !config.tied)
        *headless = true;
    checkpoint_close(c);
    model_config_release(&config);
    return rc;
}

int look_models(const char *model, const char *other, const char *option,
                struct err *e)
{
    bool headless = false;

    if (look_model(model, &headless, e) || look_model(other, &headless, e))
        return e->code;
    return headless && option ?
               err_set(e, E_USAGE,
                       "%s: the model has no output head, so no predictions to "
                       "compare",
                       option) :
               0;
}

struct command *look_eval(struct reading *r, struct pipes *p, const char *model)
{
    const char *slash = r->text ? strrchr(r->text, '/') : NULL;
    const char *name = slash ? slash + 1 : r->text;
    struct command *c = pipes_add(p, "forge-tokens");

    command_add(c, "-q", "--sequences", number_word(r->word[0], r->sequences),
                "--seqlen", number_word(r->word[1], r->seqlen), "--", model,
                r->text, NULL);
    c = pipes_add(p, "forge-eval");
    command_add(c, "--threads", number_word(r->word[2], r->threads),
                "--progress", opt_word(PROGRESS_WORDS, r->progress, r->word[3]),
                NULL);
    if (strcmp(name, "-") != 0) { /* which may begin with "--" */
        snprintf(r->named, sizeof(r->named), "--text-name=%s", name);
        command_add(c, r->named, NULL);
    }
    if (r->quiet)
        command_add(c, "-q", NULL);
    return c;
}

/* ---- forge eval --card ---- */

/* ctx: where forge-eval's result is kept, char[RESULT_MAX]. */
static void take_result(void *ctx, const char *text, size_t len)
{
    if (len < RESULT_MAX)
        snprintf(ctx, RESULT_MAX, "%.*s", (int)len, text);
}

static int put_card(const char *result, const char *dir, struct err *e)
{
    struct json_doc *d;
    int rc = json_parse(&d, result, strlen(result), "forge-eval", e);

    if (rc)
        return rc;
    rc = card_eval(dir, json_root(d), e);
    json_free(d);
    return rc;
}

int command_eval(int argc, char **argv, struct err *e)
{
    struct reading r = { .sequences = 24, .seqlen = 512 };
    double ratio = 0;
    int json = 0, card = 0, states = 0;
    const struct opt table[] = {
        { OPT_LIST, 0, "text", "FILE", "text to evaluate on", &r.texts, 0, 0,
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
        { OPT_FLAG, 0, "states", NULL,
          "compare the last hidden states, also where there are predictions",
          &states, 0, 0, false },
        { OPT_FLOAT, 0, "max-ppl-ratio", "X",
          "exit 1 if the perplexity grows by more", &ratio, 1e-6, 1e6, false },
        COMMAND_COMMON(&r.threads, &r.progress, &r.quiet),
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    int i = opt_parse(argc, argv, "eval ORIGINAL OTHER --text FILE [option]...",
                      "Compare two checkpoints of a model on a text.", table);
    char place[2][PATH_MAX];
    const char *model[2];
    char report[32], found[RESULT_MAX] = "";
    struct command *c;
    struct pipes p;
    int rc;

    if (argc - i != 2)
        return err_set(e, E_USAGE, "want ORIGINAL and OTHER (try --help)");
    if (states && ratio > 0)
        return err_set(e, E_USAGE,
                       "--states compares no predictions: no --max-ppl-ratio");
    model[0] = argv[i];
    model[1] = argv[i + 1];
    if (only_text(&r.texts, &r.text, e) < 0 ||
        find_model(&model[0], place[0], e) < 0 ||
        find_model(&model[1], place[1], e) < 0 || check_text(r.text, e) < 0 ||
        look_models(model[0], model[1], ratio > 0 ? "--max-ppl-ratio" : NULL,
                    e) < 0 ||
        (card && card_eval_check(model[1], e) < 0))
        return e->code;
    if (card && !strcmp(r.text, "-"))
        return err_set(e, E_USAGE,
                       "--card names the text's digest: want "
                       "--text FILE");
    pipes_init(&p);
    p.line = take_result;
    p.ctx = found;
    if (card && pipes_report(&p, report, e) < 0)
        return e->code;
    c = look_eval(&r, &p, model[0]);
    if (card) {
        c->writes_report = true;
        command_add(c, "--report", report, NULL);
    }
    if (json)
        command_add(c, "--json", NULL);
    if (states)
        command_add(c, "--states", NULL);
    if (ratio > 0) {
        snprintf(r.word[4], WORD, "%.17g", ratio);
        command_add(c, "--max-ppl-ratio", r.word[4], NULL);
    }
    command_add(c, "--", model[0], model[1], NULL);
    rc = pipes_run(&p, e);
    if (card && rc >= 0 && put_card(found, model[1], e) < 0)
        rc = e->code;
    return rc;
}

int command_tokens(int argc, char **argv, struct err *e)
{
    struct reading r = { .sequences = 128, .seqlen = 512 };
    int64_t skip = 0;
    int ids = 0;
    const struct opt table[] = {
        { OPT_LIST, 0, "text", "FILE", "the text [standard input]", &r.texts, 0,
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
    if (only_text(&r.texts, &r.text, e) < 0 || find_model(&model, place, e) < 0)
        return e->code;
    pipes_init(&p);
    c = pipes_add(&p, "forge-tokens");
    if (ids)
        command_add(c, "--ids", NULL);
    else
        command_add(c, "--sequences", number_word(r.word[0], r.sequences),
                    "--seqlen", number_word(r.word[1], r.seqlen), NULL);
    command_add(c, "--progress",
                opt_word(PROGRESS_WORDS, r.progress, r.word[3]), NULL);
    if (skip)
        command_add(c, "--skip-chars", number_word(r.word[2], skip), NULL);
    if (r.quiet)
        command_add(c, "-q", NULL);
    command_add(c, "--", model, r.text, NULL);
    return pipes_run(&p, e);
}
