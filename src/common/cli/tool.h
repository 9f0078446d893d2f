/* tool.h - options that all tools have, and how a tool that writes a stream
 * ends. */
#ifndef FORGE_TOOL_H
#define FORGE_TOOL_H

#include "common/cli/opt.h"
#include "common/cli/progress.h"
#include "common/io/stream.h"

/* Values of the rows TOOL_COMMON and TOOL_STREAM. */
struct tool {
    const char *output;     /* -o FILE; NULL: standard output */
    const char *key;        /* --key: stored in HEAD */
    const char *expect_key; /* --expect-key: required in the input's HEAD */
    int64_t threads;        /* -j; 0: all CPUs the process may use */
    int progress;           /* enum progress_mode */
    int quiet, verbose;
};

/* Rows for a tool's option table; t is a struct tool *. */
#define TOOL_COMMON(t)                                                         \
    { OPT_INT,                                                                 \
      'j',                                                                     \
      "threads",                                                               \
      "N",                                                                     \
      "threads, 0 = all the process may use [0]",                              \
      &(t)->threads,                                                           \
      0,                                                                       \
      4096,                                                                    \
      true },                                                                  \
        { OPT_CHOICE,                                                          \
          0,                                                                   \
          "progress",                                                          \
          PROGRESS_WORDS,                                                      \
          "report progress on stderr [auto]",                                  \
          &(t)->progress,                                                      \
          0,                                                                   \
          0,                                                                   \
          true },                                                              \
        { OPT_FLAG,    'q', "quiet", NULL, "no summary, no warnings",          \
          &(t)->quiet, 0,   0,       true },                                   \
    {                                                                          \
        OPT_FLAG, 'v', "verbose", NULL, "print notes, too", &(t)->verbose, 0,  \
            0, true                                                            \
    }
#define TOOL_STREAM(t)                                                         \
    { OPT_OUTPUT,                                                              \
      'o',                                                                     \
      "output",                                                                \
      "FILE",                                                                  \
      "write the stream to FILE [standard output]",                            \
      &(t)->output,                                                            \
      0,                                                                       \
      0,                                                                       \
      true },                                                                  \
        { OPT_STR,   0, "key", "KEY", "settings key to store in the HEAD",     \
          &(t)->key, 0, 0,     true },                                         \
    {                                                                          \
        OPT_STR, 0, "expect-key", "KEY",                                       \
            "refuse an input with another settings key", &(t)->expect_key, 0,  \
            0, true                                                            \
    }
#define TOOL_END                                                               \
    {                                                                          \
        OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false                        \
    }

/* After opt_parse(): set verbosity, the number of threads, and malloc's
 * thresholds. */
void tool_apply(const struct tool *t);
/* Regular end of a tool: write END, publish the file (stream_finish()), print
 * the summary with `text` appended (NULL: none).  If END cannot be written,
 * print the error and end the process. */
void tool_finish(struct stream_writer *out, struct progress *p,
                 const char *text);
/* Print e, then send it as an ERROR frame to the reader of `out` and free
 * `out`; a file output is discarded.  out NULL: as die_err() tells it. */
void tool_report_error(struct stream_writer *out, const struct err *e);
/* tool_report_error(), then end the process with status -e->code. */
NORETURN void tool_fail(struct stream_writer *out, const struct err *e);

/* Directory for temporary files (common/io/region.h): $TMPDIR, else the
 * directory of the output file, else /tmp.  Static memory, valid until the
 * next call. */
const char *tool_temporary_dir(const struct tool *t);

#endif
