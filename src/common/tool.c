/* tool.c - see tool.h. */
#include "common/tool.h"

#include <malloc.h>

#include "common/threads.h"

/* Freed memory that is kept for the next layer: fresh pages have to be zeroed by
 * the system, 4 % of the time of a small model. */
enum { KEPT = 64 << 20 };

void tool_apply(const struct tool *t)
{
    verbosity = t->quiet ? -1 : t->verbose ? 1 : 0;
    threads_set(t->threads);
    mallopt(M_MMAP_THRESHOLD, KEPT);
    mallopt(M_TRIM_THRESHOLD, KEPT);
}
