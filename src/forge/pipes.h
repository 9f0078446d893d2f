/* pipes.h - runs commands in a pipe, and finds out which one caused a
 * failure. */
#ifndef FORGE_PIPES_H
#define FORGE_PIPES_H

#include <signal.h>
#include <sys/types.h>

#include "common/base.h"

enum { COMMAND_WORDS = 2048, PIPE_COMMANDS = 12, REASON_MAX = 1024, WORD = 32 };

struct command {
    const char *argv[COMMAND_WORDS + 1]; /* not copied: must outlive the run */
    int argc;
    bool writes_report; /* inherits the report's descriptor, see below */
    bool lends;         /* inherits the ledger's descriptor, see below */
    bool feeds;         /* inherits the write end of pipes_along() */
    /* Path of files, with % for a number 0..n_before-1, that are copied to the pipe
     * before the command's output; beside a ring as they appear. */
    const char *before;
    int64_t n_before;
    bool along;  /* ... or as they are written: from the pipe pipes_along() */
    bool feeder; /* nothing else: no program is started */
    bool beside; /* begins a second pipe, beside the ring of those before */
};

struct pipes {
    struct command command[PIPE_COMMANDS];
    int n;
    int in, out; /* descriptors for the first and the last; -1: inherit ours */
    bool loop;   /* a ring: the last one's output is the first one's input.  A
                  * failure in the ring or beside it ends both */
    bool captured; /* read their stderr; its first line is the error message */
    /* A pipe, made by pipes_report(), to which commands write lines by the path
     * /dev/fd/N; line() is called with each.  -1: none. */
    int report, report_end;
    int ledger; /* of device/ledger.h, /dev/fd/N; -1: none.  pipes_ledger() */
    int along, along_end; /* from the ring to the pipe beside it; -1: none */
    void (*line)(void *ctx, const char *text, size_t len);
    /* All commands of the ring have done their work; what is beside it may go on.  NULL:
     * not wanted. */
    void (*ring_done)(void *ctx);
    void *ctx;
};

void pipes_init(struct pipes *p);
/* Add a command, with its name as the only word; returns it, at most
 * PIPE_COMMANDS. */
struct command *pipes_add(struct pipes *p, const char *name);
/* Append words to a command; the list ends with NULL. */
void command_add(struct command *c, const char *word, ...)
    __attribute__((sentinel));
/* to = a number as a word; returned. */
const char *number_word(char to[WORD], int64_t n);
/* Create the report's pipe; path: what to pass to the command that writes it.
 * E_TEMP. */
MUST_CHECK int pipes_report(struct pipes *p, char path[32], struct err *e);
/* Make the pipe by which a command of the ring, which gets `path`, gives files to the one
 * with `along` while it writes them. */
MUST_CHECK int pipes_along(struct pipes *p, char path[32], struct err *e);
/* Make the ledger, which no directory has; path: what commands are given. */
MUST_CHECK int pipes_ledger(struct pipes *p, char path[32], struct err *e);

/* A signalfd(2) for poll(2), readable when a child has ended or TERM, INT or
 * HUP has come; these signals are blocked.  *before: the signal mask to
 * restore.  Negative: failed. */
int signals_open(sigset_t *before);

/* Run all commands to their end.  0; 1: the last command exited with 1 (a check
 * with the answer no); or the error of the command that failed first:
 *     killed by a signal      E_TEMP: out of memory, or the node is going down
 *     we got TERM, INT or     -(128 + signal), and E_TEMP in *e; it is passed on
 *     HUP                     to all
 *     our reader has gone     -(128 + SIGPIPE), if the last command died of it; e->told
 *     crashed                 E_BUG
 *     a status of sysexits.h  that status, with the command's message; e->told
 *     is set (the
 *                             command has printed it) unless captured
 *     another status          E_BUG
 *     cannot be started       E_NOINPUT */
MUST_CHECK int pipes_run(struct pipes *p, struct err *e);

#endif
