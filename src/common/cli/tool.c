/* tool.c - see tool.h. */
#include "common/cli/tool.h"

#include <libgen.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/math/threads.h"

/* Freed blocks below 64 MiB stay with malloc for the next layer: the kernel
 * zeroes every fresh page, 4 % of the time of a small model. */
enum { KEPT = 64 << 20 };

void tool_apply(const struct tool *t)
{
    verbosity = t->quiet ? -1 : t->verbose ? 1 : 0;
    threads_set(t->threads);
    mallopt(M_MMAP_THRESHOLD, KEPT);
    mallopt(M_TRIM_THRESHOLD, KEPT);
}

const char *tool_temporary_dir(const struct tool *t)
{
    static char path[PATH_MAX];
    const char *tmp = getenv("TMPDIR");

    if (tmp && *tmp)
        return tmp;
    if (!t->output || !strcmp(t->output, "-") ||
        snprintf(path, sizeof(path), "%s", t->output) >= (int)sizeof(path))
        return "/tmp";
    return dirname(path);
}

void tool_finish(struct stream_writer *out, struct progress *p,
                 const char *text)
{
    struct err e;

    if (stream_finish(out, &e) < 0)
        tool_fail(NULL, &e);
    progress_finish(p, text);
}

void tool_report_error(struct stream_writer *out, const struct err *e)
{
    err_print(e);
    if (out)
        stream_abort(out, e);
    else if (die_tells)
        die_tells(e);
}

void tool_fail(struct stream_writer *out, const struct err *e)
{
    tool_report_error(out, e);
    _exit(-e->code);
}
