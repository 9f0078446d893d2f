/* ledger.h - memory of the device that the tools of a run lend to each other.
 *
 * Activations and Hessians are made on the device by one process and read there
 * by another.  A frame then says where they are (struct loan of stream.h), and no
 * byte of them goes through the pipe.  The ledger is a file that the tools of one
 * run share, a page of memory:
 *
 * - Who reads says at its start whether it can map what is lent to it, by a block
 *   of its own that the lender maps on trial.  A reader that cannot, or has said
 *   nothing for four seconds, gets bytes.
 * - Each end holds a mutex while it lives, which the system gives up before it
 *   gives back memory.  So a reader that has read, and then finds the lender
 *   alive, has read what was lent; and a lender waits for no reader that is gone.
 * - A lease is a block that one frame refers to.  The reader gives it back.
 *   Where none is left, the frame has bytes.
 *
 * All of it may be called with l NULL: nothing is lent. */
#ifndef FORGE_LEDGER_H
#define FORGE_LEDGER_H

#include "common/cli/opt.h"
#include "common/io/stream.h"

enum ledger_link { LEDGER_ACTIVATIONS, LEDGER_HESSIANS, LEDGER_LINKS };

struct ledger;

/* A row for a tool's option table; dst: const char **. */
#define LOANS_OPTION(dst)                                                      \
    {                                                                          \
        OPT_STR, 0, "loans", "FILE",                                           \
            "lend memory of the GPU to the next tool and take loans, as far "  \
            "as FILE, new for each run, says that it can map them",            \
            dst, 0, 0, true                                                    \
    }

/* path: a file that is new or empty at the run's start, or NULL: *l is NULL.
 * E_NOINPUT, E_USAGE: it is another run's. */
MUST_CHECK int ledger_open(struct ledger **l, const char *path, struct err *e);
/* A lender waits until all leases are back. */
void ledger_close(struct ledger *l);

/* ---- who reads ---- */

/* Say that we do, or cannot: once device_open() is through.  E_USAGE: another
 * process has said so. */
MUST_CHECK int ledger_reads(struct ledger *l, enum ledger_link link,
                            struct err *e);
/* Where the n bytes of a loan are for us; valid while the lender lives.  E_DATA:
 * there is no such block. */
MUST_CHECK int ledger_map(struct ledger *l, const struct loan *loan,
                          const void **p, struct err *e);
/* Whether all that was read so far was there; all of it has been read. */
bool ledger_was_there(struct ledger *l, enum ledger_link link);
/* A stream_get_loan() of Hessians, which gives the lease back.  E_DATA: the lender is
 * gone. */
int ledger_get(void *ledger, const struct loan *loan, void *to, size_t n,
               struct err *e);

/* ---- who lends ---- */

/* Whether the reader can map it: asked once. */
bool ledger_lends(struct ledger *l, enum ledger_link link);
/* What a frame says of memory `offset` bytes into a block of device_functions(). */
MUST_CHECK int ledger_loan(const void *block, size_t offset, struct loan *loan,
                           struct err *e);
/* A block of n bytes at least that no frame refers to, and its lease, in loan;
 * false: there is none. */
bool ledger_lease(struct ledger *l, size_t n, void **block, struct loan *loan);

#endif
