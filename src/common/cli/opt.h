/* opt.h - command-line options: one table is the parser, the --help text, the
 * completion list of shells, and what tests/cli compares the man pages with. */
#ifndef FORGE_OPT_H
#define FORGE_OPT_H

#include "common/base.h"

/* Type of an option's value, and of *dst. */
enum opt_type {
    OPT_END,    /* last row */
    OPT_FLAG,   /* int *: incremented at each occurrence */
    OPT_INT,    /* int64_t *, min..max */
    OPT_FLOAT,  /* double *, min..max */
    OPT_STR,    /* const char **: points into argv */
    OPT_OUTPUT, /* the same: a file that is written, not empty, and no input of
                 * the tool (file_guard()) */
    OPT_SIZE,   /* uint64_t *: bytes, in the notation of units.h */
    OPT_CHOICE, /* int *: index of the value among the words of arg, "a|b|c" */
    OPT_LIST    /* struct opt_list *: may be given several times */
};

enum { OPT_FILE = 2 }; /* of opt.local */

/* Values of an OPT_LIST option, in the order given; pointers into argv. */
struct opt_list {
    const char **item;
    int count;
};

/* One option. */
struct opt {
    enum opt_type type;
    char letter;      /* short form, or 0 */
    const char *name; /* long form, without the dashes */
    const char *arg;  /* placeholder of the value in --help, "N"; NULL: no
                       * value */
    const char *help; /* one line; ends with the default in [brackets] if it
                       * has one */
    void *dst;        /* where the value is stored, see enum opt_type */
    double min, max;  /* OPT_INT, OPT_FLOAT: range, inclusive; OPT_SIZE: 0 is a
                       * value where max is not 0 */
    int local;        /* true: the option does not change the output's content
                      * (threads, verbosity): not recorded in HEAD frames;
                      * OPT_FILE: the path does not, but what the file has does:
                      * --name=ARG is recorded */
};

/* Parse all options up to "--" and move the operands behind them; returns the
 * argv index of the first operand.  -h/--help and -V/--version print to stdout
 * and exit 0; every error is die(E_USAGE) with a suggestion.  "--complete" as
 * the only argument prints "--name ARG" for each option, for shells.  Sets
 * stream_args (stream.h) to the options that are not local, the CPU level from
 * $FORGE_CPU, and, in a tool that writes a stream, die_tells.
 *
 * Option names are not abbreviated, so that new options cannot make old
 * command lines ambiguous.  A value that begins with "--" must be joined by
 * '=': otherwise an option without its value would consume the next option.
 *
 * synopsis, summary: the first lines of --help. */
int opt_parse(int argc, char **argv, const char *synopsis, const char *summary,
              const struct opt *table);

/* Behind opt_parse(), add to stream_args what the table cannot say: "name=VALUE",
 * without characters that JSON escapes. */
void opt_record(const char *option);

/* The option without which a tool that has a --key writes no stream, "--sequences"; NULL:
 * it writes one in any case.  To be set before opt_parse(). */
extern const char *opt_for_stream;

/* Copy word i (from 0) of `words`, separated by '|', to `to`; returns `to`.
 * Words have fewer than OPT_WORD characters. */
enum { OPT_WORD = 24 };
const char *opt_word(const char *words, int i, char to[OPT_WORD]);

/* For a word that is not among `words` (separated by '|'): " (did you mean
 * 'X'?)" if one or two of them are close to it, else " (try --help)".  Static
 * memory, valid until the next call. */
const char *opt_hint(const char *word, const char *words);

#endif
