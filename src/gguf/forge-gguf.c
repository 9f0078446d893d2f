/* forge-gguf - a checkpoint as one file for llama.cpp.  See forge-gguf(1). */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "common/cli/tool.h"
#include "gguf/convert.h"

enum { REST_STORED, REST_Q8_0 };

struct settings {
    struct tool tool;
    int rest, check;
    const char *model, *out;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_CHOICE, 0, "rest", "stored|q8_0",
          "matrices that are not in 4 bits: as they are, or Q8_0 [stored]",
          &s->rest, 0, 0, false },
        { OPT_FLAG, 0, "check", NULL,
          "write nothing: can MODEL be written like that?", &s->check, 0, 0,
          true },
        TOOL_COMMON(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[option...] MODEL OUT",
                      "Write a checkpoint as a GGUF file, which llama.cpp "
                      "loads.",
                      table);

    if (argc - i != (s->check ? 1 : 2))
        die(E_USAGE, s->check ? "want MODEL (try --help)" :
                                "want MODEL and OUT (try --help)");
    s->model = argv[i];
    s->out = argv[i + 1];
    tool_apply(&s->tool);
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
    if (!s.check && access(s.out, F_OK) == 0)
        die(E_CREATE, "'%s': is there already", s.out);
    if (gguf_plan(&plan, s.model, s.rest == REST_Q8_0, &e)) {
        err_prefix(&e, "'%s'", s.model);
        die_err(&e);
    }
    progress_start(&progress, s.tool.progress, "tensors", plan.n);
    if (!s.check && gguf_write(&plan, s.out, &progress, &e))
        die_err(&e);
    snprintf(text, sizeof(text),
             "%" PRIu64 " linears in Q4_0, %" PRIu64 " in Q4_1", plan.q4_0,
             plan.q4_1);
    progress_finish(&progress, text);
    gguf_plan_release(&plan);
    return 0;
}
