/* ledger.h - shares device memory between the tools of a run, so that frames
 * need not carry it.
 *
 * Activations and Hessians are computed on the device by one process (the
 * lender) and read there by the next one in the pipe (the reader).  A LOAN
 * frame (struct loan in stream.h) says where they are, and none of their bytes
 * go through the pipe.  A link is a lender and a reader of one kind of frame.
 * The ledger is a file that the tools of a run map: a page of facts, and behind
 * it room for what is lent in the host's memory: weights, codes, and Hessians and
 * cross moments made without a GPU.
 *
 * Test: at its start the reader tells whether it has a GPU, and the handle of
 * a zeroed block of its own, which the lender maps and reads to see whether
 * mapping works.  To a reader that cannot, or has told nothing for four
 * seconds, the lender sends bytes.  What is in the host's memory is for readers
 * without a GPU, too; codes are bytes until both readers have told.
 *
 * Life: each end holds a robust mutex while it lives, which the kernel
 * releases before it frees the process's memory.  A reader that finds the
 * lender alive after it has read has read valid memory; a lender does not wait
 * for a reader that is dead.
 *
 * Lease: a block of device memory that one frame refers to, from the writing
 * of the frame until the reader returns it.  If all leases of Hessians are in use,
 * the frame has bytes.  Activations have leases where their memory is to be used
 * again before all of a point have been read (calib/lending.h).
 *
 * Room: a lease in the ledger's file.  Its bytes are whole when the frame is
 * sent, and stay if the lender dies.
 *
 * l may be NULL, where nothing is lent, except for ledger_map(). */
#ifndef FORGE_LEDGER_H
#define FORGE_LEDGER_H

#include "common/cli/opt.h"
#include "common/io/stream.h"

/* forge-calib to forge-hessian; forge-hessian to forge-solve; forge-weights to
 * forge-grid, and by that to forge-solve, which returns the leases; forge-solve to
 * forge-split, and by that to forge-calib, which both return them. */
enum ledger_link {
    LEDGER_ACTIVATIONS,
    LEDGER_HESSIANS,
    LEDGER_GRIDS,
    LEDGER_WEIGHTS,
    LEDGER_FILES,
    LEDGER_CODES,
    LEDGER_LINKS
};
enum {
    LEDGER_LEASES = 16, /* of a link; rooms of weights, of codes */
    LEDGER_MOMENTS = 8  /* rooms of Hessians and cross moments */
};

struct ledger;

/* Row of a tool's option table; dst: const char **. */
#define LOANS_OPTION(dst)                                                      \
    {                                                                          \
        OPT_STR, 0, "loans", "FILE",                                           \
            "lend memory of the GPU to the next tool and take loans, as far "  \
            "as FILE, new for each run, says that it can map them",            \
            dst, 0, 0, true                                                    \
    }

/* Map the ledger at path, a file that is new or empty at the start of the run.
 * path NULL: *l is NULL.  E_NOINPUT, E_TEMP. */
MUST_CHECK int ledger_open(struct ledger **l, const char *path, struct err *e);
/* Close; a lender first waits until the reader has returned all leases or is
 * dead. */
void ledger_close(struct ledger *l);

/* ---- reader ---- */

/* Announce this process as the reader of the link, with a GPU or without;
 * after device_open().  To be called by the thread that lives longest.
 * E_USAGE: another process has announced itself; E_TEMP. */
MUST_CHECK int ledger_reads(struct ledger *l, enum ledger_link link,
                            struct err *e);
/* *p: the loan's memory in this process, valid while the lender lives.
 * E_DATA: there is no GPU, or more blocks than a lender can have; E_DEVICE: it cannot be mapped. */
MUST_CHECK int ledger_map(struct ledger *l, const struct loan *loan,
                          const void **p, struct err *e);
/* Wait until all reading of loans on the device is complete; true: the lender
 * is still alive, so what was read is valid. */
bool ledger_was_there(struct ledger *l, enum ledger_link link);
/* *p: the n bytes of a loan that is in room of the ledger.  E_DATA: it is in none,
 * or is not as long; E_TEMP. */
MUST_CHECK int ledger_see(struct ledger *l, const struct loan *loan, size_t n,
                          const void **p, struct err *e);
/* *data: f's payload, lent in room or not.  E_DATA, also where nobody lends, or f says
 * more of the loan (lent_fp8.h); E_TEMP: both name f. */
MUST_CHECK int ledger_payload(struct ledger *l, const struct frame *f,
                              const void **data, struct err *e);
/* Copy the n bytes of a Hessian's or cross moments' loan on the device to host memory.
 * E_DATA: the lender is dead, or the loan is malformed. */
MUST_CHECK int ledger_copy(struct ledger *l, const struct loan *loan, void *to,
                           size_t n, struct err *e);
/* Return the lease of a loan whose reading is complete; of one without a lease
 * nothing. */
void ledger_return(struct ledger *l, const struct loan *loan);

/* ---- lender ---- */

/* Whether the reader of the link can map loans, of weights both readers; the first
 * call waits for the announcement of each, at most four seconds. */
bool ledger_lends(struct ledger *l, enum ledger_link link);
/* Whether both readers of weights compute on a GPU: 1, 0; -1: one of them has not told
 * yet.  From any thread. */
int ledger_on_gpu(const struct ledger *l);
/* *loan for memory `offset` bytes into a block made by
 * device_functions()->block(), without a lease. */
MUST_CHECK int ledger_loan(const void *block, size_t offset, struct loan *loan,
                           struct err *e);
/* Take lease number i, from 0, of activations, which is back; returns what loan.lease
 * says then. */
uint32_t ledger_take(struct ledger *l, int i);
/* Whether it is back, or was never taken; or nobody will return it, since the reader is
 * dead. */
bool ledger_is_back(struct ledger *l, int i);
/* *block: a block of at least n bytes that no frame refers to; *loan: a loan
 * of it with its lease.  False: none is free. */
bool ledger_lease(struct ledger *l, size_t n, void **block, struct loan *loan);
/* The same in room of the ledger, the host's memory: one of its blocks number
 * first..end-1 (of LEDGER_LEASES), each as large as the first request for it.  May
 * be called by another thread than all else. */
bool ledger_room(struct ledger *l, int first, int end, size_t n, void **block,
                 struct loan *loan);
/* Bytes of the room that n bytes of codes take. */
size_t ledger_codes_room(size_t n);
/* The same for codes, if both readers can see them now. */
bool ledger_codes(struct ledger *l, size_t n, void **block, struct loan *loan);
/* The same for a Hessian or cross moments, if both readers of weights can see them. */
bool ledger_moments(struct ledger *l, size_t n, void **block,
                    struct loan *loan);

#endif
