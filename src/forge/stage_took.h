/* stage_took.h - how long a step took: its line of stages.jsonl, for forge-report(1); of a
 * run in parts it says at which stop, and on which machine. */
#ifndef FORGE_STAGE_TOOK_H
#define FORGE_STAGE_TOOK_H

#include "forge/stage_tools.h"

/* Append the line, with the CPU time of this process and of the tools, which have ended.
 * Warns where it cannot be written. */
void stage_took(const struct stage *s, double seconds);

#endif
