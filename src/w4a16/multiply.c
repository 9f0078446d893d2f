/* multiply.c - see forge_w4a16.h: a product, divided into tiles for all
 * threads. */
#include <stdio.h>
#include <stdlib.h>

#include "common/math/threads.h"
#include "w4a16/w4a16.h"

static const char what[] = "4-bit product";
enum { ADDED = 1024 }; /* outputs whose parts are added at a time */

/* One linear and its rows of x. */
struct expert {
    struct w4_x x;
    struct w4_tiles t;
    int64_t row;   /* its first row in x and y */
    int64_t tiles; /* number of tiles of the experts before it */
    int64_t down;  /* its tiles along the rows */
    /* Several parts: a tile is of one of them; they are added behind all tiles. */
    int64_t parts, across; /* tiles of a part */
    float *sums;           /* [parts, rows, outputs] */
};

struct job {
    const struct expert *expert;
    int64_t experts, cols;
    const struct forge_w4a16_rows *y;
    struct threads_error error;
};

static void *y_at(const struct forge_w4a16_rows *y, int64_t r, int64_t o)
{
    return (char *)y->p +
           (size_t)(r * y->ld + o) * (dtype_bits((enum dtype)y->type) / 8);
}

/* sums[n] to row r of y, from output o on. */
static void put(const struct job *j, int64_t r, int64_t o, const float *sums,
                int64_t n)
{
    (void)!from_f32(y_at(j->y, r, o), (enum dtype)j->y->type, sums, (size_t)n);
}

static void run_part(const struct job *j, const struct expert *x, int64_t tile)
{
    int64_t part = tile / x->across, o = tile % x->across * x->t.cols;
    int64_t n = j->cols - o < x->t.cols ? j->cols - o : x->t.cols;

    w4_part(&x->x, part, o, n, x->sums + part * x->x.rows * j->cols + o,
            j->cols);
}

/* y of outputs o.. of an expert, the sum of its parts in order. */
static void add_parts(const struct job *j, const struct expert *x, int64_t o)
{
    int64_t n = j->cols - o < ADDED ? j->cols - o : ADDED;

    for (int64_t r = 0; r < x->x.rows; r++) {
        float *to = x->sums + r * j->cols + o;

        for (int64_t p = 1; p < x->parts; p++) {
            const float *from = to + p * x->x.rows * j->cols;

            for (int64_t i = 0; i < n; i++)
                to[i] += from[i];
        }
        put(j, x->row + r, o, to, n);
    }
}

static void add(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;

    for (int64_t t = (int64_t)begin; t < (int64_t)end; t++) {
        const struct expert *x = j->expert + t % j->experts;

        if (x->parts > 1)
            add_parts(j, x, t / j->experts * ADDED);
    }
}

static int run_tile(const struct job *j, const struct expert *x, int64_t tile,
                    struct err *e)
{
    int64_t r = tile % x->down * x->t.rows, o = tile / x->down * x->t.cols;
    int64_t m = x->x.rows - r, n = j->cols - o;
    bool f32 = j->y->type == FORGE_W4A16_F32;
    size_t sums;
    char *room;

    m = m < x->t.rows ? m : x->t.rows;
    n = n < x->t.cols ? n : x->t.cols;
    sums = f32 ? 0 : (size_t)(m * n) * sizeof(float);
    room = mem_pages(x->t.room + sums, what, e);
    if (!room)
        return e->code;
    if (f32)
        w4_tile(&x->x, r, m, o, n, y_at(j->y, x->row + r, o), j->y->ld, room);
    else
        w4_tile(&x->x, r, m, o, n, (float *)(void *)(room + x->t.room), n,
                room);
    for (int64_t i = 0; i < m && !f32; i++)
        put(j, x->row + r + i, o,
            (const float *)(const void *)(room + x->t.room) + i * n, n);
    free(room);
    return 0;
}

static void run_tiles(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    int64_t i = 0;

    for (size_t t = begin; t < end; t++) {
        struct err e;

        while (i + 1 < j->experts && j->expert[i + 1].tiles <= (int64_t)t)
            i++;
        if (j->expert[i].parts > 1)
            run_part(j, j->expert + i, (int64_t)t - j->expert[i].tiles);
        else if (run_tile(j, j->expert + i, (int64_t)t - j->expert[i].tiles,
                          &e) < 0)
            threads_error_add(&j->error, t, &e);
    }
}

/* Choose the size of tiles, as wide as suits the kernels, but enough tiles for
 * all threads; adds their number to *total.  f32 products keep their size, so
 * that results do not depend on the number of threads.  Parts are for more tiles
 * alone: whole sums have the same bits, and need no memory.  Those of a row of AWQ's
 * words have eight cache lines at least. */
static int cut(struct expert *x, int64_t cols, int64_t experts, int64_t *total,
               struct err *e)
{
    bool fixed = x->x.rows > W4_FEW && x->x.type == DT_F32;
    int64_t wanted = (4 * threads_count() + experts - 1) / experts;
    int64_t least = W4_BLOCK;

    x->t = w4_tiles(&x->x);
    if (x->x.rows <= W4_FEW && x->x.w->form == W4_AWQ)
        least *= 8;
    x->down = (x->x.rows + x->t.rows - 1) / x->t.rows;
    x->across = (cols + x->t.cols - 1) / x->t.cols;
    x->parts = x->across * x->down < wanted ? w4_parts(&x->x) : 1;
    x->down *= x->parts;
    while (!fixed && x->across * x->down < wanted && x->t.cols > least) {
        x->t.cols /= 2;
        x->across = (cols + x->t.cols - 1) / x->t.cols;
    }
    x->tiles = *total;
    *total += x->across * x->down;
    if (x->parts == 1)
        return 0;
    x->sums = mem_alloc((size_t)(x->parts * x->x.rows * cols) * sizeof(float),
                        what, e);
    return x->sums ? 0 : e->code;
}

static int check(const struct forge_w4a16_rows *r, const char *name,
                 struct err *e)
{
    if (r->type < FORGE_W4A16_F32 || r->type > FORGE_W4A16_BF16)
        return err_set(e, E_CONFIG, "%s: no such type of %s", what, name);
    return 0;
}

static int run(struct expert *x, const struct forge_w4a16 *const *w,
               const int64_t *first, int64_t experts,
               const struct forge_w4a16_rows *from,
               const struct forge_w4a16_rows *y, struct err *e)
{
    struct job j = { .expert = x, .y = y };
    int64_t total = 0;
    bool parts = false;

    if (check(from, "x", e) < 0 || check(y, "y", e) < 0)
        return e->code;
    for (int64_t i = 0; i < experts; i++) {
        int64_t rows = w4_expert_rows(first + i, w[i], e);
        struct expert *to = x + j.experts;

        if (rows < 0)
            return e->code;
        if (!rows)
            continue;
        to->row = first[i];
        if (w4_x_prepare(&to->x, w[i], y_at(from, first[i], 0),
                         (enum dtype)from->type, from->ld, rows, e) < 0)
            return e->code;
        j.experts++;
        if (w[i]->rows != x->x.w->rows || w[i]->cols != x->x.w->cols)
            return err_set(e, E_CONFIG, "%s: experts differ in shape", what);
    }
    if (!j.experts)
        return 0;
    j.cols = x->x.w->rows;
    for (int64_t i = 0; i < j.experts; i++)
        if (cut(x + i, j.cols, j.experts, &total, e) < 0)
            return e->code;
    threads_error_init(&j.error);
    threads_for((size_t)total, 1, run_tiles, &j);
    for (int64_t i = 0; i < j.experts; i++)
        parts = x[i].parts > 1 || parts;
    if (parts)
        threads_for((size_t)((j.cols + ADDED - 1) / ADDED * j.experts), 1, add,
                    &j);
    return threads_error_take(&j.error, e);
}

int forge_w4a16_grouped(const struct forge_w4a16 *const *w,
                        const int64_t *first, int64_t experts,
                        const struct forge_w4a16_rows *x,
                        const struct forge_w4a16_rows *y, char *why,
                        size_t why_size)
{
    struct err e = { 0 };
    struct expert *all = mem_zero((size_t)experts, sizeof(*all), what, &e);
    int rc = all ? run(all, w, first, experts, x, y, &e) : e.code;

    for (int64_t i = 0; all && i < experts; i++) {
        w4_x_release(&all[i].x);
        free(all[i].sums);
    }
    free(all);
    if (rc < 0 && why && why_size)
        snprintf(why, why_size, "%s", e.msg);
    return rc;
}

int forge_w4a16_multiply(const struct forge_w4a16 *w,
                         const struct forge_w4a16_rows *x, int64_t rows,
                         const struct forge_w4a16_rows *y, char *why,
                         size_t why_size)
{
    const int64_t first[2] = { 0, rows };

    return forge_w4a16_grouped(&w, first, 1, x, y, why, why_size);
}

void forge_w4a16_threads(int n)
{
    threads_set(n);
}
