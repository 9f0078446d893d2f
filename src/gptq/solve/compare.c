/* compare.c - see solve.h: losses of the methods compared with, measured on a
 * sample of a large module's rows. */
#include "common/math/sample.h"
#include "gptq/solve/solve.h"
#include "gptq/solve/solve_kernel.h"

enum { ROWS = SOLVE_ROWS };
_Static_assert((int)ROWS == (int)SAMPLE_ROWS, "a tile of the sample");

uint64_t solve_compare_step(uint64_t rows)
{
    enum { MOST = 16 };

    return ((rows + ROWS - 1) / ROWS + MOST - 1) / MOST;
}

static uint64_t step_of(const struct solve_params *p)
{
    return solve_compare_step(p->of ? p->of : p->rows);
}

bool solve_compared(const struct solve_params *p, uint64_t row)
{
    return (p->first + row) / ROWS % step_of(p) == 0;
}

/* The number of W's first tile in the sample. */
static uint64_t first_compared(const struct solve_params *p)
{
    uint64_t step = step_of(p);

    return (step - p->first / ROWS % step) % step;
}

uint64_t solve_compared_tiles(const struct solve_params *p)
{
    uint64_t tiles = (p->rows + ROWS - 1) / ROWS, step = step_of(p);
    uint64_t first = first_compared(p);

    return tiles > first ? (tiles - first + step - 1) / step : 0;
}

uint64_t solve_tile_order(const struct solve_params *p, uint64_t i)
{
    uint64_t n = solve_compared_tiles(p), first = first_compared(p);
    uint64_t step = step_of(p);

    if (i < n)
        return first + i * step;
    i -= n; /* of the others, of which step - 1 lie between two of the sample */
    return i < first ? i : i + 1 + (i - first) / (step - 1);
}

static double tile_sum(const double *loss, uint64_t row, uint64_t rows)
{
    double sum = 0;

    for (uint64_t r = row; r < row + ROWS && r < rows; r++)
        sum += loss[r];
    return sum;
}

double solve_loss_sum(const double *loss, uint64_t rows)
{
    double sum = 0;

    for (uint64_t r = 0; r < rows; r += ROWS)
        sum += tile_sum(loss, r, rows);
    return sum;
}

double solve_compare_sum(const struct solve_params *p, const double *loss,
                         const double *other)
{
    struct sample s = { 0 };

    for (uint64_t r = 0; r < p->rows; r += ROWS)
        sample_add(&s, tile_sum(loss, r, p->rows),
                   solve_compared(p, r) ? tile_sum(other, r, p->rows) : NAN,
                   p->rows - r < ROWS ? p->rows - r : ROWS);
    return sample_estimate(&s);
}

void solve_tile_losses(const struct solve_params *p, enum solve_loss which,
                       const double *loss)
{
    uint64_t tiles = (p->rows + ROWS - 1) / ROWS;

    for (uint64_t t = 0; p->tiles && t < tiles; t++)
        p->tiles[which * tiles + t] =
            which == LOSS_CODES || solve_compared(p, t * ROWS) ?
                tile_sum(loss, t * ROWS, p->rows) :
                NAN;
}
