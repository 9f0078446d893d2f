/* tool.c - see tool.h. */
#include "common/tool.h"

#include "common/threads.h"

void tool_apply(const struct tool *t)
{
    verbosity = t->quiet ? -1 : t->verbose ? 1 : 0;
    threads_set(t->threads);
}
