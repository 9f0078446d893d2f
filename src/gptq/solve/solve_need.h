/* solve_need.h - the GPU memory that solving a linear takes, by the sizes that the
 * plug-in allocates (solve_room.h). */
#ifndef FORGE_SOLVE_NEED_H
#define FORGE_SOLVE_NEED_H

#include "gptq/solve/solve_refined.h"

struct solve_need {
    enum effort effort;
    uint64_t group;
    bool symmetric;
    bool moved, drift; /* targets are moved; by D, else by G or F (target.h) */
    bool fisher;       /* rows are moved together */
    uint64_t rows, cols;
};

/* Bytes with all rows at once.  least: with as few as there may be, on an effort
 * that refines; rows are then not moved together on the GPU. */
uint64_t solve_need_bytes(const struct solve_need *n, bool least);

#endif
