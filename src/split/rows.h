/* rows.h - puts together the codes, grids and notes of linears whose rows come in
 * parts, MODULE.rows-FIRST-END-of-OF (arch/tensor_name.h), as forge-solve writes
 * them: what it would have written of all rows. */
#ifndef FORGE_SPLIT_ROWS_H
#define FORGE_SPLIT_ROWS_H

#include "common/io/json.h"
#include "common/io/stream.h"

/* Zero-initialise; rows_release() when done. */
struct rows {
    struct joined *module; /* [count]: those whose rows have not all come */
    size_t count;
    struct joined *done; /* the one that rows_next() is giving out, or NULL */
    int next;            /* its next frame */
};

/* 1: f is of some rows, kept; 0: it is not.  E_DATA: rows that do not follow those
 * before, or do not fit them; E_TEMP. */
MUST_CHECK int rows_take(struct rows *r, const struct frame *f, struct err *e);
/* After rows_take(): the next frame of a module that is complete now, until the next
 * call.  1; 0: there is none; E_TEMP. */
MUST_CHECK int rows_next(struct rows *r, struct frame *f, struct err *e);
/* E_DATA: the stream has ended, and rows are missing. */
MUST_CHECK int rows_end(const struct rows *r, struct err *e);
void rows_release(struct rows *r);

#endif
