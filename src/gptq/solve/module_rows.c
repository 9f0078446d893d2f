/* module_rows.c - see module_rows.h. */
#include "gptq/solve/module_rows.h"

#include <math.h>
#include <stdio.h>

#include "arch/tensor_name.h"
#include "gptq/solve/solve_kernel.h"

int module_rows_alone(const char *name, const struct fishers *fishers,
                      struct err *e)
{
    char module[FRAME_NAME_MAX + 1];
    struct name_rows rows;
    size_t len;

    if (!name_rows_of(name, &len, &rows))
        return 0;
    snprintf(module, sizeof(module), "%.*s", (int)len, name);
    return fishers_have(fishers, module) ?
               err_set(e, E_CONFIG, "'%s': its rows are solved together",
                       name) :
               0;
}

int module_rows_tiles(double **tiles, struct solve_params *p,
                      struct module_report *report, struct err *e)
{
    uint64_t n = (p->rows + SOLVE_ROWS - 1) / SOLVE_ROWS;

    if (mem_grow(tiles, LOSSES * n * sizeof(**tiles), "solve", e) < 0)
        return e->code;
    for (uint64_t i = 0; i < LOSSES * n; i++)
        (*tiles)[i] = NAN;
    p->tiles = *tiles;
    report->tiles = *tiles;
    report->n_tiles = n;
    return 0;
}
