/* tool.h - the options that every stream tool has, so that they are the same
 * words everywhere. */
#ifndef FORGE_TOOL_H
#define FORGE_TOOL_H

#include "common/cli/opt.h"
#include "common/cli/progress.h"
#include "common/io/stream.h"

struct tool {
    const char *output;     /* -o FILE; NULL: standard output */
    const char *key;        /* --key */
    const char *expect_key; /* --expect-key */
    int64_t threads;
    int progress; /* enum progress_mode */
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
          "say on stderr how far it is [auto]",                                \
          &(t)->progress,                                                      \
          0,                                                                   \
          0,                                                                   \
          true },                                                              \
        { OPT_FLAG,    'q', "quiet", NULL, "no summary, no warnings",          \
          &(t)->quiet, 0,   0,       true },                                   \
    {                                                                          \
        OPT_FLAG, 'v', "verbose", NULL, "say what is done", &(t)->verbose, 0,  \
            0, true                                                            \
    }
#define TOOL_STREAM(t)                                                         \
    { OPT_STR,                                                                 \
      'o',                                                                     \
      "output",                                                                \
      "FILE",                                                                  \
      "publish the stream as FILE [standard output]",                          \
      &(t)->output,                                                            \
      0,                                                                       \
      0,                                                                       \
      true },                                                                  \
        { OPT_STR,   0, "key", "KEY", "settings key to store in the stream",   \
          &(t)->key, 0, 0,     true },                                         \
    {                                                                          \
        OPT_STR, 0, "expect-key", "KEY",                                       \
            "refuse an input whose key is another", &(t)->expect_key, 0, 0,    \
            true                                                               \
    }
#define TOOL_END                                                               \
    {                                                                          \
        OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false                        \
    }

/* After opt_parse: sets verbosity and the number of threads. */
void tool_apply(const struct tool *t);
/* A tool's regular end: END of its stream, and the summary (text: more of it, or
 * NULL).  Where END cannot be written, as tool_fail(). */
void tool_finish(struct stream_writer *out, struct progress *p,
                 const char *text);
/* Say why a tool fails: here, and then to the reader of its stream (NULL: none),
 * whose file is discarded. */
void tool_tell(struct stream_writer *out, const struct err *e);
/* The same, and the end, with status -e->code. */
NORETURN void tool_fail(struct stream_writer *out, const struct err *e);

/* Where states lie that memory has no room for: $TMPDIR, or beside the output;
 * valid until the next call. */
const char *tool_temporary_dir(const struct tool *t);

#endif
