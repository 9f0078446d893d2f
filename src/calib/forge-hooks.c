/* forge-hooks - inputs of linears from other programs' files.  See
 * forge-hooks(1). */
#include <inttypes.h>
#include <stdio.h>

#include "calib/hooks.h"
#include "common/cli/tool.h"

static int parse(struct tool *t, int argc, char **argv)
{
    const struct opt table[] = {
        TOOL_COMMON(t),
        TOOL_STREAM(t),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[option...] MODEL FILE... > activations",
                      "Read the inputs of linears from .npy, .pt and "
                      ".safetensors files.",
                      table);

    if (argc - i < 2)
        die(E_USAGE, "want MODEL and at least one FILE (try --help)");
    tool_apply(t);
    return i;
}

static void say_ignored(const struct hooks *h)
{
    if (h->ignored == 1)
        remark("'%s' is not quantized: left out", h->ignored_name);
    else if (h->ignored)
        remark("%" PRIu64 " tensors of modules that are not quantized left "
               "out, the first of '%s'",
               h->ignored, h->ignored_name);
}

int main(int argc, char **argv)
{
    struct tool tool = { 0 };
    struct hooks h = { 0 };
    struct progress progress;
    struct stream_writer *out;
    char text[80];
    struct err e;
    int i;

    base_init(argv[0]);
    i = parse(&tool, argc, argv);
    if (hooks_open(&h, argv[i], (const char *const *)argv + i + 1, argc - i - 1,
                   &e) ||
        stream_create(
            &out,
            &(struct stream_output){ .path = tool.output, .key = tool.key },
            &e))
        die_err(&e);
    say_ignored(&h);
    progress_start(&progress, tool.progress, "tensors", h.n);
    if (hooks_write(&h, out, &progress, &e))
        tool_fail(out, &e);
    snprintf(text, sizeof(text), "%" PRIu64 " of the same inputs left out",
             h.repeated);
    tool_finish(out, &progress, h.repeated ? text : NULL);
    hooks_release(&h);
    return 0;
}
