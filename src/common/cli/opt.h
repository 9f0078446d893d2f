/* opt.h - one table is the parser, the --help text and the test's oracle. */
#ifndef FORGE_OPT_H
#define FORGE_OPT_H

#include "common/base.h"

enum opt_type {
    OPT_END,
    OPT_FLAG,   /* int *: incremented */
    OPT_INT,    /* int64_t *, min..max */
    OPT_FLOAT,  /* double *, min..max */
    OPT_STR,    /* const char ** */
    OPT_SIZE,   /* uint64_t *: bytes, see units.h */
    OPT_CHOICE, /* int *: index into arg, words separated by '|' */
    OPT_LIST    /* struct opt_list *: may be given more than once */
};

/* The values of an OPT_LIST option, in the order given. */
struct opt_list {
    const char **item;
    int count;
};

struct opt {
    enum opt_type type;
    char letter;      /* short form, or 0 */
    const char *name; /* long form, without the dashes */
    const char *arg;  /* what --help calls the value, e.g. "N" */
    const char *help; /* ends with the default in [brackets] where it has one */
    void *dst;
    double min, max; /* of OPT_INT and OPT_FLOAT, both inclusive */
    bool local;      /* says where or how, not what: kept out of HEAD frames */
};

/* Parse all options, up to "--", and move the operands behind them; returns
 * the index of the first operand.  Knows -h/--help and -V/--version (stdout,
 * exit 0); dies with E_USAGE on anything wrong, with what may have been meant.
 * Names are never abbreviated: an abbreviation is a promise about the future.
 * A value may begin with "--" only where it is joined by '=': else an option
 * whose value was forgotten would swallow the next.
 * --complete, alone: a line "--name ARG" for each option, for shells. */
int opt_parse(int argc, char **argv, const char *synopsis, const char *summary,
              const struct opt *table);

/* The i-th word of an OPT_CHOICE's arg, none of which is longer. */
enum { OPT_WORD = 24 };
const char *opt_word(const char *words, int i, char to[OPT_WORD]);

/* " (did you mean 'X'?)" for a word that is none of `words`, which are separated
 * by '|', where one or two are near to it; else " (try --help)".  Valid until the
 * next call. */
const char *opt_hint(const char *word, const char *words);

#endif
