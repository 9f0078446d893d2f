/* pipes.h - commands in a pipe, run to their end, and which of them is to blame
 * when it fails. */
#ifndef FORGE_PIPES_H
#define FORGE_PIPES_H

#include <signal.h>
#include <sys/types.h>

#include "common/base.h"

enum { COMMAND_WORDS = 64, PIPE_COMMANDS = 8, REASON_MAX = 1024, WORD = 32 };

struct command {
    const char *argv[COMMAND_WORDS + 1]; /* kept as they are, not copied */
    int argc;
    bool writes_report; /* to the report's descriptor, see below */
    const char *before; /* files, % a number from 0 to n_before - 1, that go
                           out before what the command itself puts out */
    int64_t n_before;
};

struct pipes {
    struct command command[PIPE_COMMANDS];
    int n;
    int in, out; /* of the first and the last; -1: ours */
    bool loop;   /* what the last puts out is what the first takes in */
    bool
        captured; /* their stderr is ours to read: the first line is the reason */
    /* Where a command writes lines, as /dev/fd/N, that line() gets one by one;
     * -1: nowhere.  Made by pipes_report(). */
    int report, report_end;
    void (*line)(void *ctx, const char *text, size_t len);
    void *ctx;
};

void pipes_init(struct pipes *p);
/* The next command, without words but its name. */
struct command *pipes_add(struct pipes *p, const char *name);
/* Words to its end; NULL ends them. */
void command_add(struct command *c, const char *word, ...)
    __attribute__((sentinel));
/* A number as such a word. */
const char *number_word(char to[WORD], int64_t n);
/* Make the report's pipe; path: what the command that writes it is given. */
MUST_CHECK int pipes_report(struct pipes *p, char path[32], struct err *e);

/* Who waits for others by poll(2): a descriptor that can be read when a child has
 * ended, or TERM, INT or HUP has come.  *before: the mask to go back to.
 * Negative: it could not be made. */
int signals_open(sigset_t *before);

/* Run them all.  0; 1, when the last said so (a check that says no); or what
 * went wrong first:
 *     killed from outside     E_TEMP: the system was short of memory, or a node
 *                             is going down; also where TERM, INT or HUP came
 *                             to us, which they get, too
 *     crashed                 E_BUG
 *     ended with a status     that, with its own line; e->told unless captured */
MUST_CHECK int pipes_run(struct pipes *p, struct err *e);

#endif
