/* compare.c - see solve.h: losses of the methods compared with, measured on a
 * sample of a large module's rows. */
#include "gptq/solve/solve.h"
#include "gptq/solve/solve_kernel.h"

enum { ROWS = SOLVE_ROWS };

uint64_t solve_compare_step(uint64_t rows)
{
    enum { MOST = 16 };

    return ((rows + ROWS - 1) / ROWS + MOST - 1) / MOST;
}

double solve_compare_sum(const double *loss, const double *other, uint64_t rows)
{
    uint64_t step = solve_compare_step(rows), n = 0;
    double all = 0, some = 0, sum = 0;

    for (uint64_t r = 0; r < rows; r++) {
        bool compared = r / ROWS % step == 0;

        all += loss[r];
        some += compared ? loss[r] : 0;
        sum += compared ? other[r] : 0;
        n += compared;
    }
    return n == rows ? sum :
           some > 0  ? sum * all / some :
                       sum * (double)rows / (double)n;
}
