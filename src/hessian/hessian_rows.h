/* hessian_rows.h - the linears, or rows of linears, that a share of a stop solves
 * (forge-hessian --rows): names, of which those of rows are name_rows of
 * arch/tensor_name.h, separated by commas. */
#ifndef FORGE_HESSIAN_ROWS_H
#define FORGE_HESSIAN_ROWS_H

#include "arch/tensor_name.h"
#include "common/io/stream.h"

/* What a frame of moments has of them: name_rows of their numbers in its name, and of a cross
 * frame of its rows; without these it has all. */
struct moments_piece {
    char name[FRAME_NAME_MAX + 1]; /* of all */
    struct name_rows rows;         /* of: 0 of a name alone that has all */
};

/* Piece k of n of `of` rows.  False: none is in it. */
bool piece_rows(uint64_t of, int64_t k, int64_t n, struct name_rows *r);
/* Set *p by the frame's name, or, of all, by dims. */
void piece_named(const char *name, struct moments_piece *p);
void piece_of(const struct frame *f, struct moments_piece *p);
static inline bool piece_has(const struct moments_piece *p, uint64_t first,
                             uint64_t n)
{
    return p->rows.first < first + n && first < p->rows.end;
}

/* *to: those names of `list` that are of one of `modules`, separated by '\n', in the
 * order of `list`; "": none; the caller frees it.  E_TEMP. */
MUST_CHECK int rows_of_modules(const char *list, const char *modules, char **to,
                               struct err *e);
/* f: a cross frame [rows, C] of a linear's outputs.  f->dims[0] = the number of rows that
 * the list says, *first: the first.  1; 0: the list has none of them; E_DATA: it has
 * other rows, or those of several linears; E_TEMP. */
MUST_CHECK int rows_cut(const char *list, struct frame *f, uint64_t *first,
                        struct err *e);

#endif
