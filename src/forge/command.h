/* command.h - the commands of forge(1).
 *
 * Each parses its options by a table of its own, and so has its own --help.
 * argv[0] is "forge", the command's word is removed.  Returns the exit status 0
 * or 1, or an E_* or -(128 + signal) with *e, which forge.c prints. */
#ifndef FORGE_COMMAND_H
#define FORGE_COMMAND_H

#include "common/cli/opt.h"
#include "common/cli/progress.h"

#define SHARD_SIZE 5000000000 /* --shard-size: as Hugging Face's own writers */

/* Rows of option tables that commands share.  threads: int64_t *; progress,
 * quiet: int *. */
#define COMMAND_COMMON(threads, progress, quiet)                               \
    { OPT_INT, 'j', "threads", "N", "threads of each tool, 0 = all [0]",       \
      threads, 0,   4096,      true },                                         \
        { OPT_CHOICE,                                                          \
          0,                                                                   \
          "progress",                                                          \
          PROGRESS_WORDS,                                                      \
          "report progress on stderr [auto]",                                  \
          progress,                                                            \
          0,                                                                   \
          0,                                                                   \
          true },                                                              \
    {                                                                          \
        OPT_FLAG, 'q', "quiet", NULL, "no progress, no summary", quiet, 0, 0,  \
            true                                                               \
    }

int command_quantize(int argc, char **argv, struct err *e);
int command_prune(int argc, char **argv, struct err *e);
int command_repack(int argc, char **argv, struct err *e);
int command_eval(int argc, char **argv, struct err *e);
int command_tokens(int argc, char **argv, struct err *e);
int command_report(int argc, char **argv, struct err *e);
int command_status(int argc, char **argv, struct err *e);
int command_gc(int argc, char **argv, struct err *e);
/* Run one step of pipeline.mk; the current directory is the work directory. */
int command_stage(int argc, char **argv, struct err *e);

#endif
