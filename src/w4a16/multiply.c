/* multiply.c - see forge_w4a16.h: a product, divided into tiles for all
 * threads. */
#include <stdio.h>
#include <stdlib.h>

#include "common/math/threads.h"
#include "w4a16/w4a16.h"

static const char what[] = "4-bit product";
/* Fewest and most outputs whose parts are added at a time. */
enum { ADDED_MIN = 256, ADDED_MAX = 1024 };

/* A linear with its rows of x and y. */
struct item {
    struct w4_x x;
    const struct forge_w4a16_rows *y;
    int64_t row;  /* the first of its rows in x and y */
    int64_t cols; /* outputs */
    struct w4_tiles t;
    int64_t tiles; /* number of tiles of the items before it */
    int64_t down;  /* its tiles along the rows */
    /* Several parts: a tile is of one of them; they are added behind all tiles. */
    int64_t parts, across; /* tiles of a part */
    float *sums;           /* [parts, rows, outputs] */
};

struct job {
    struct item *item;
    int64_t items, outputs; /* the sum of the outputs of all items */
    int64_t added;          /* outputs whose parts are added at a time */
    struct threads_error error;
};

static void *row_at(const struct forge_w4a16_rows *y, int64_t r, int64_t o)
{
    return (char *)y->p +
           (size_t)(r * y->ld + o) * (dtype_bits((enum dtype)y->type) / 8);
}

/* sums[n] to row r of the item's y, from output o on. */
static void put(const struct item *x, int64_t r, int64_t o, const float *sums,
                int64_t n)
{
    (void)!from_f32(row_at(x->y, x->row + r, o), (enum dtype)x->y->type, sums,
                    (size_t)n);
}

static void run_part(const struct item *x, int64_t tile)
{
    int64_t part = tile / x->across, o = tile % x->across * x->t.cols;
    int64_t n = x->cols - o < x->t.cols ? x->cols - o : x->t.cols;

    w4_part(&x->x, part, o, n, x->sums + part * x->x.rows * x->cols + o,
            x->cols);
}

/* y of n outputs from o on, or what is left of an item, the sum of its parts in order. */
static void add_parts(const struct item *x, int64_t o, int64_t n)
{
    n = x->cols - o < n ? x->cols - o : n;

    for (int64_t r = 0; r < x->x.rows; r++) {
        float *to = x->sums + r * x->cols + o;

        for (int64_t p = 1; p < x->parts; p++) {
            const float *from = to + p * x->x.rows * x->cols;

            for (int64_t i = 0; i < n; i++)
                to[i] += from[i];
        }
        put(x, r, o, to, n);
    }
}

static void add(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;

    for (int64_t t = (int64_t)begin; t < (int64_t)end; t++) {
        const struct item *x = j->item + t % j->items;
        int64_t o = t / j->items * j->added;

        if (x->parts > 1 && o < x->cols)
            add_parts(x, o, j->added);
    }
}

static int run_tile(const struct item *x, int64_t tile, struct err *e)
{
    int64_t r = tile % x->down * x->t.rows, o = tile / x->down * x->t.cols;
    int64_t m = x->x.rows - r, n = x->cols - o;
    bool f32 = x->y->type == FORGE_W4A16_F32;
    size_t sums;
    char *room;

    m = m < x->t.rows ? m : x->t.rows;
    n = n < x->t.cols ? n : x->t.cols;
    sums = f32 ? 0 : (size_t)(m * n) * sizeof(float);
    room = mem_pages(x->t.room + sums, what, e);
    if (!room)
        return e->code;
    if (f32)
        w4_tile(&x->x, r, m, o, n, row_at(x->y, x->row + r, o), x->y->ld, room);
    else
        w4_tile(&x->x, r, m, o, n, (float *)(void *)(room + x->t.room), n,
                room);
    for (int64_t i = 0; i < m && !f32; i++)
        put(x, r + i, o,
            (const float *)(const void *)(room + x->t.room) + i * n, n);
    free(room);
    return 0;
}

static void run_tiles(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    int64_t i = 0;

    for (size_t t = begin; t < end; t++) {
        const struct item *x;
        struct err e;

        while (i + 1 < j->items && j->item[i + 1].tiles <= (int64_t)t)
            i++;
        x = j->item + i;
        if (x->parts > 1)
            run_part(x, (int64_t)t - x->tiles);
        else if (run_tile(x, (int64_t)t - x->tiles, &e) < 0)
            threads_error_add(&j->error, t, &e);
    }
}

/* Choose the size of an item's tiles, as wide as suits the kernels, but enough tiles for
 * all threads; adds their number to *total.  f32 products keep their size, so
 * that results do not depend on the number of threads.  Parts are for more tiles
 * alone: whole sums have the same bits, and need no memory.  Of up to W4_FEW rows tiles of
 * AWQ have eight cache lines of a row of words at least, and those of W4_BY_OUTPUT, which
 * has no parts, a quarter of a block. */
static int cut(const struct job *j, struct item *x, int64_t *total,
               struct err *e)
{
    bool fixed = x->x.rows > W4_FEW && x->x.type == DT_F32;
    int64_t wanted =
        (4 * threads_count() * x->cols + j->outputs - 1) / j->outputs;
    int64_t least = W4_BLOCK;

    x->t = w4_tiles(&x->x);
    if (x->x.rows <= W4_FEW && x->x.w->form == W4_AWQ)
        least *= 8;
    if (x->x.rows <= W4_FEW && x->x.w->form == W4_BY_OUTPUT)
        least /= 4;
    x->down = (x->x.rows + x->t.rows - 1) / x->t.rows;
    x->across = (x->cols + x->t.cols - 1) / x->t.cols;
    x->parts = x->across * x->down < wanted ? w4_parts(&x->x) : 1;
    x->down *= x->parts;
    while (!fixed && x->across * x->down < wanted && x->t.cols > least) {
        x->t.cols /= 2;
        x->across = (x->cols + x->t.cols - 1) / x->t.cols;
    }
    x->tiles = *total;
    *total += x->across * x->down;
    if (x->parts == 1)
        return 0;
    x->sums = mem_alloc(
        (size_t)(x->parts * x->x.rows * x->cols) * sizeof(float), what, e);
    return x->sums ? 0 : e->code;
}

/* Add an item: rows first.. of x and y, times w. */
static int add_item(struct job *j, const struct forge_w4a16 *w,
                    const struct forge_w4a16_rows *x,
                    const struct forge_w4a16_rows *y, int64_t first,
                    int64_t rows, bool same_x, struct err *e)
{
    struct item *to = j->item + j->items;

    if (w4_rows_check(x, "x", first + rows, w->cols, e) < 0 ||
        w4_rows_check(y, "y", first + rows, w->rows, e) < 0)
        return e->code;
    *to = (struct item){ .y = y, .row = first, .cols = w->rows };
    if (!(same_x && j->items && w4_x_share(&to->x, &j->item->x, w)) &&
        w4_x_prepare(&to->x, w, row_at(x, first, 0), (enum dtype)x->type, x->ld,
                     rows, e) < 0)
        return e->code;
    j->items++;
    j->outputs += to->cols;
    return 0;
}

static int run(struct job *j, struct err *e)
{
    int64_t total = 0, longest = 0;

    for (int64_t i = 0; i < j->items; i++) {
        struct item *x = j->item + i;

        if (cut(j, x, &total, e) < 0)
            return e->code;
        if (x->parts > 1 && x->cols > longest)
            longest = x->cols;
    }
    threads_error_init(&j->error);
    threads_for((size_t)total, 1, run_tiles, j);
    j->added = longest / threads_count() / ADDED_MIN * ADDED_MIN;
    j->added = j->added < ADDED_MIN ? ADDED_MIN :
               j->added > ADDED_MAX ? ADDED_MAX :
                                      j->added;
    threads_for((size_t)((longest + j->added - 1) / j->added * j->items), 1,
                add, j);
    return threads_error_take(&j->error, e);
}

/* Memory for up to n items.  there: whether the arrays of what they need are. */
static int begin(struct job *j, int64_t n, bool there,
                 const struct forge_w4a16_rows *x, struct err *e)
{
    *j = (struct job){ .item = NULL };
    if (n < 0)
        return err_set(e, E_CONFIG, "%s: no such number of linears", what);
    if (n && !there)
        return err_set(e, E_CONFIG, "%s: NULL", what);
    if (w4_rows_check(x, "x", 0, 0, e) < 0)
        return e->code;
    j->item = mem_zero((size_t)n, sizeof(*j->item), what, e);
    return j->item ? 0 : e->code;
}

/* Run the items if rc is 0, which is returned else; releases them. */
static int end(struct job *j, int rc, struct err *e)
{
    if (rc == 0 && j->items)
        rc = run(j, e);
    for (int64_t i = 0; i < j->items; i++) {
        w4_x_release(&j->item[i].x);
        free(j->item[i].sums);
    }
    free(j->item);
    return rc;
}

static int grouped(const struct forge_w4a16 *const *w, const int64_t *first,
                   int64_t experts, const struct forge_w4a16_rows *x,
                   const struct forge_w4a16_rows *y, struct err *e)
{
    const struct forge_w4a16 *one = NULL;
    struct job j;
    int rc = begin(&j, experts, w && first, x, e);

    for (int64_t i = 0; i < experts && rc == 0; i++) {
        int64_t rows = w4_expert_rows(first + i, w[i], e);

        if (rows <= 0) {
            rc = (int)rows;
            continue;
        }
        one = one ? one : w[i];
        rc = w[i]->rows != one->rows || w[i]->cols != one->cols ?
                 err_set(e, E_CONFIG, "%s: experts differ in shape", what) :
                 add_item(&j, w[i], x, y, first[i], rows, false, e);
    }
    return end(&j, rc, e);
}

int w4_several(const struct forge_w4a16 *const *w, int64_t n,
               const struct forge_w4a16_rows *x, int64_t rows,
               const struct forge_w4a16_rows *y, struct err *e)
{
    struct job j;
    int rc = begin(&j, n, w && y, x, e);

    for (int64_t i = 0; i < n && rc == 0; i++) {
        if (!w[i])
            rc = err_set(e, E_CONFIG, "%s: NULL", what);
        else if (w[i]->cols != w[0]->cols)
            rc = err_set(e, E_CONFIG, "%s: linears differ in inputs", what);
        else if (rows)
            rc = add_item(&j, w[i], x, y + i, 0, rows, true, e);
        else
            rc = w4_rows_check(y + i, "y", 0, 0, e);
    }
    return end(&j, rc, e);
}

static int result(int rc, const struct err *e, char *why, size_t why_size)
{
    if (rc < 0 && why && why_size)
        snprintf(why, why_size, "%s", e->msg);
    return rc;
}

int forge_w4a16_grouped(const struct forge_w4a16 *const *w,
                        const int64_t *first, int64_t experts,
                        const struct forge_w4a16_rows *x,
                        const struct forge_w4a16_rows *y, char *why,
                        size_t why_size)
{
    struct err e = { 0 };

    return result(grouped(w, first, experts, x, y, &e), &e, why, why_size);
}

int forge_w4a16_several(const struct forge_w4a16 *const *w, int64_t n,
                        const struct forge_w4a16_rows *x, int64_t rows,
                        const struct forge_w4a16_rows *y, char *why,
                        size_t why_size)
{
    struct err e = { 0 };

    return result(w4_several(w, n, x, rows, y, &e), &e, why, why_size);
}

int forge_w4a16_multiply(const struct forge_w4a16 *w,
                         const struct forge_w4a16_rows *x, int64_t rows,
                         const struct forge_w4a16_rows *y, char *why,
                         size_t why_size)
{
    return forge_w4a16_several(&w, 1, x, rows, y, why, why_size);
}

void forge_w4a16_threads(int n)
{
    threads_set(n);
}
