/* forge-gguf - a checkpoint as one file for llama.cpp.  See forge-gguf(1). */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/cli/tool.h"
#include "gguf/convert.h"
#include "gguf/verify.h"

struct settings {
    struct tool tool;
    int rest, check, verify;
    const char *name, *model, *out;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_CHOICE, 0, "rest", GGUF_REST_WORDS,
          "matrices that are not in 4 bits: as they are, or Q8_0 [stored]",
          &s->rest, 0, 0, false },
        { OPT_STR, 0, "name", "TEXT",
          "the name of the model [its directory's name]", &s->name, 0, 0,
          false },
        { OPT_FLAG, 0, "check", NULL,
          "write nothing: can MODEL be written like that?", &s->check, 0, 0,
          true },
        { OPT_FLAG, 0, "verify", NULL,
          "write nothing: is the file OUT what was written?", &s->verify, 0, 0,
          true },
        TOOL_COMMON(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[option...] MODEL OUT",
                      "Write a checkpoint as a GGUF file, which llama.cpp "
                      "loads.",
                      table);

    if (argc - i != (s->check || s->verify ? 1 : 2))
        die(E_USAGE, s->verify ? "want OUT (try --help)" :
                     s->check  ? "want MODEL (try --help)" :
                                 "want MODEL and OUT (try --help)");
    s->model = argv[i];
    s->out = argv[argc - 1];
    if (!*s->out)
        die(E_USAGE, "OUT is no file's name");
    tool_apply(&s->tool);
}

/* End the process; a message that names neither `path` nor a file in it, names it first. */
static NORETURN void fail(struct err *e, const char *path)
{
    char quoted[PATH_MAX + 1];

    snprintf(quoted, sizeof(quoted), "'%s", path);
    if (!strstr(e->msg, quoted))
        err_prefix(e, "'%s'", path);
    die_err(e);
}

/* Print a line on standard output for each difference. */
static void say(const char *path, const char *what)
{
    printf("'%s': %s: not as it was written\n", path, what);
}

static int verify(const struct settings *s)
{
    struct gguf_verdict v;
    struct progress progress;
    char text[100];
    struct err e;

    progress_start(&progress, s->tool.progress, "tensors", 0);
    if (gguf_verify(s->out, say, &progress, &v, &e))
        fail(&e, s->out);
    if (flush_stdout(&e) < 0)
        die_err(&e);
    snprintf(text, sizeof(text), "%" PRIu64 " not as it was written", v.wrong);
    progress_finish(&progress, v.wrong ? text : "as they were written");
    return v.wrong ? EXIT_NO : 0;
}

/* Say which values will be others than the checkpoint's.  An error of m = -z s in F16 is
 * half a last place: below 15 s / 2048. */
static void warn(const struct gguf_plan *p)
{
    if (p->rounded)
        warning("Q4_1 holds zero points times scales, rounded to F16: weights "
                "of %" PRIu64 " linear%s change by less than 1/128 of their "
                "scale",
                p->rounded, p->rounded > 1 ? "s" : "");
    if (p->doubles)
        warning("%" PRIu64 " tensor%s in F64 will be rounded to F32",
                p->doubles, p->doubles > 1 ? "s" : "");
}

int main(int argc, char **argv)
{
    struct settings s = { 0 };
    struct gguf_plan plan;
    struct progress progress;
    char text[100];
    struct err e;

    base_init(argv[0]);
    parse(&s, argc, argv);
    if (s.verify)
        return verify(&s);
    if (!s.check && access(s.out, F_OK) == 0)
        die(E_CREATE, "'%s': is there already", s.out);
    if (gguf_plan(&plan, s.model, s.name, s.rest == GGUF_REST_Q8_0, &e))
        fail(&e, s.model);
    warn(&plan);
    progress_start(&progress, s.tool.progress, "tensors", plan.n);
    if (!s.check && gguf_write(&plan, s.out, &progress, &e))
        die_err(&e);
    snprintf(text, sizeof(text),
             "%" PRIu64 " linears in Q4_0, %" PRIu64 " in Q4_1, %" PRIu64
             " in Q8_0",
             plan.q4_0, plan.q4_1, plan.q8_0);
    progress_finish(&progress, text);
    gguf_plan_release(&plan);
    return 0;
}
