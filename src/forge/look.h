/* look.h - what commands share that read a text. */
#ifndef FORGE_LOOK_H
#define FORGE_LOOK_H

#include <limits.h>

#include "common/cli/opt.h"
#include "forge/pipes.h"

/* Options about the text, and about running tools. */
struct reading {
    const char *text;
    struct opt_list texts; /* as given: only_text() makes it text */
    int64_t sequences, seqlen, threads;
    int progress, quiet;
    char word[5][WORD];
    char named[NAME_MAX + 16]; /* --text-name=... */
};

/* Open both checkpoints before a pipe in which forge-tokens and forge-eval would each
 * print what is wrong with one.  option: the name of one that wants predictions, or NULL.
 * E_USAGE: it is given, and a model has no output head; errors of model_config_read() and
 * checkpoint_open(). */
MUST_CHECK int look_models(const char *model, const char *other,
                           const char *option, struct err *e);
/* Add forge-tokens, on r->text, and forge-eval to the pipe; returns the latter,
 * which lacks its operands. */
struct command *look_eval(struct reading *r, struct pipes *p,
                          const char *model);

#endif
