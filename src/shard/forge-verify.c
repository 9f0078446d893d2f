/* forge-verify - check a finished checkpoint against its digests.  See
 * forge-verify(1). */
#include <inttypes.h>
#include <stdio.h>

#include "common/cli/tool.h"
#include "checkpoint/digests.h"

struct settings {
    struct tool tool;
    int tensors;
    const char *dir;
};

static void parse(struct settings *s, int argc, char **argv)
{
    const struct opt table[] = {
        { OPT_FLAG, 0, "tensors", NULL,
          "check only the tensors: faster, and also where they were moved to "
          "other files",
          &s->tensors, 0, 0, true },
        TOOL_COMMON(&s->tool),
        TOOL_END,
    };
    int i = opt_parse(argc, argv, "[option...] DIR",
                      "Check every byte of a finished checkpoint against the "
                      "digests that were written with it.",
                      table);

    if (argc - i != 1)
        die(E_USAGE, "want one directory (try --help)");
    s->dir = argv[i];
    tool_apply(&s->tool);
}

/* Print a line on standard output for each difference. */
static void say(void *ctx, const char *file, const char *what)
{
    (void)ctx;
    printf("'%s': %s\n", file, what);
}

int main(int argc, char **argv)
{
    struct settings s = { 0 };
    struct progress progress;
    struct check_counts n;
    struct err e;

    base_init(argv[0]);
    parse(&s, argc, argv);
    progress_start(&progress, s.tool.progress, "tensors", 0);
    if (digests_check(s.dir, s.tensors, say, NULL, &n, &e))
        die_err(&e);
    if (flush_stdout(&e) < 0)
        die_err(&e);
    progress.done = n.tensors;
    if (progress.mode == PROGRESS_JSON)
        progress_finish(&progress, NULL);
    else if (n.wrong && verbosity >= 0)
        fprintf(stderr, "%s: '%s': %" PRIu64 " not as it was written\n",
                progname, s.dir, n.wrong);
    else if (verbosity >= 0)
        fprintf(stderr,
                "%s: '%s': %" PRIu64 " files, %" PRIu64
                " tensors: as they were written\n",
                progname, s.dir, n.files, n.tensors);
    return n.wrong ? EXIT_NO : 0;
}
