/* solve_room.h - the GPU memory of the solver: the plug-in allocates each buffer by
 * these sizes, and forge --dry-run prints their sum.  What CUDA's libraries take is
 * not among them. */
#ifndef FORGE_SOLVE_ROOM_H
#define FORGE_SOLVE_ROOM_H

#include "common/base.h"
#include "common/math/quant.h"

enum {
    SOLVE_BLOCK = 128,    /* columns that one launch of the solver quantizes; a
                        * factor is padded to a multiple of it */
    SOLVE_TILE = 64,      /* rows of a block of threads; a module is padded */
    REFINED_SUPER = 1024, /* columns that a product with all others is for */
    REFINED_DIVIDE = 512  /* columns that are divided by L together */
};

static inline uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Of n factors of [cols, cols], in the order of struct cuda_factors; whole: with the
 * Hessian itself, for the refined solver. */
enum {
    FACTOR_L,
    FACTOR_DIAGONAL,
    FACTOR_SPLIT,
    FACTOR_INPUT,
    FACTOR_DEAD,
    FACTOR_LAMBDAS,
    FACTOR_WHOLE,
    FACTOR_CURVE,
    FACTOR_ROOMS
};
static inline void factor_rooms(uint64_t n, uint64_t cols, bool whole,
                                uint64_t bytes[FACTOR_ROOMS])
{
    uint64_t padded = round_up(cols, SOLVE_BLOCK);
    uint64_t square = n * padded * padded, blocks = n * padded * SOLVE_BLOCK;

    bytes[FACTOR_L] = square * 4;
    bytes[FACTOR_DIAGONAL] = blocks * 4;
    bytes[FACTOR_SPLIT] = square * 3 * 2;
    bytes[FACTOR_INPUT] = n * cols * 4;
    bytes[FACTOR_DEAD] = n * cols;
    bytes[FACTOR_LAMBDAS] = n * 8;
    bytes[FACTOR_WHOLE] = whole ? square * 3 * 2 : 0;
    bytes[FACTOR_CURVE] = whole ? blocks * 4 : 0;
}

/* Rows to solve: n matrices of cols inputs, the rows of `share` modules of each. */
struct solve_size {
    uint64_t n, share, rows, cols, groups;
    uint64_t padded, pitch; /* solve_size() */
};
static inline struct solve_size solve_size(uint64_t n, uint64_t share,
                                           uint64_t rows, uint64_t cols,
                                           uint64_t group)
{
    struct solve_size s;

    s.n = n;
    s.share = share;
    s.rows = rows;
    s.cols = cols;
    s.groups = quant_groups(cols, group);
    s.padded = round_up(cols, SOLVE_BLOCK);
    s.pitch = share * round_up(rows, SOLVE_TILE);
    return s;
}

/* Buffers of the context that the solver of EFFORT_FAST needs. */
enum {
    SOLVE_SHIFTED,
    SOLVE_PUSHED,
    SOLVE_SPLIT,
    SOLVE_CODES,
    SOLVE_META,
    SOLVE_LOSS,
    SOLVE_ORDER,
    SOLVE_WEIGHT,
    SOLVE_PACKED,
    SOLVE_ROOMS
};
static inline void solve_rooms(const struct solve_size *s,
                               uint64_t bytes[SOLVE_ROOMS])
{
    uint64_t all = s->n * s->padded * s->pitch;

    bytes[SOLVE_SHIFTED] = bytes[SOLVE_PUSHED] = all * 4;
    bytes[SOLVE_SPLIT] = 3 * all * 2;
    bytes[SOLVE_CODES] = all;
    bytes[SOLVE_META] = s->n * s->groups * s->pitch * 4;
    bytes[SOLVE_LOSS] = s->n * s->pitch * 8 + s->n * s->share * 8;
    bytes[SOLVE_ORDER] = s->n * s->cols * 4;
    bytes[SOLVE_WEIGHT] = s->rows * s->cols * 4;
    bytes[SOLVE_PACKED] = s->rows * (s->cols / 2 + 4 * s->groups);
}

/* Those of the refined solver; factors: block_params.factors. */
enum {
    REFINED_SHIFTED,
    REFINED_PUSHED,
    REFINED_SPLIT,
    REFINED_SECOND,
    REFINED_GRADIENT,
    REFINED_MOVED,
    REFINED_CODES,
    REFINED_META,
    REFINED_LOSS,
    REFINED_ORDER,
    REFINED_IMPORTANCE,
    REFINED_STEPS,
    REFINED_WEIGHT,
    REFINED_PACKED,
    REFINED_ROOMS
};
static inline void refined_rooms(const struct solve_size *s, uint64_t factors,
                                 uint64_t bytes[REFINED_ROOMS])
{
    uint64_t all = s->n * s->padded * s->pitch, half = s->cols / 2;

    bytes[REFINED_SHIFTED] = bytes[REFINED_PUSHED] = all * 4;
    bytes[REFINED_SPLIT] = 3 * all * 2;
    bytes[REFINED_SECOND] = all * 4;
    bytes[REFINED_GRADIENT] = s->n * REFINED_SUPER * s->pitch * 4;
    bytes[REFINED_MOVED] = s->n * 3 * SOLVE_BLOCK * s->pitch * 2 + 4;
    bytes[REFINED_CODES] = all;
    bytes[REFINED_META] = 2 * s->n * s->groups * s->pitch * 4;
    bytes[REFINED_LOSS] = s->n * (s->padded / SOLVE_BLOCK) * s->pitch * 8;
    bytes[REFINED_ORDER] = s->padded * 8;
    bytes[REFINED_IMPORTANCE] = s->rows * 4;
    bytes[REFINED_STEPS] = factors * 8;
    bytes[REFINED_WEIGHT] = s->rows * s->cols * 4;
    bytes[REFINED_PACKED] =
        s->rows * (half > 4 * s->groups ? half : 4 * s->groups);
}

/* A matrix of a cross moment D beside n factors; to move targets, and to move rows
 * together by F [rows, rows], one after the other in one buffer; the inverses of
 * blocks of L. */
static inline uint64_t drift_room(uint64_t n, uint64_t padded)
{
    return n * padded * padded * 4;
}
static inline uint64_t target_room(uint64_t padded)
{
    return 3 * padded * padded * 2;
}
static inline uint64_t fisher_room(uint64_t rows)
{
    uint64_t ld = round_up(rows, SOLVE_TILE);

    return ld * ld * (4 + 3 * 2);
}
static inline uint64_t inverse_room(uint64_t padded)
{
    return 2 * round_up(padded, REFINED_DIVIDE) * REFINED_DIVIDE * 4;
}

#endif
