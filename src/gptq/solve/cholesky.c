/* cholesky.c - see cholesky.h.
 *
 * Left-looking and blocked: before a block of columns is factored, the product
 * of all columns to its left is subtracted from it, by the kernel that the
 * solver uses too.  The product is cut into pieces of DEPTH columns: a piece of
 * the block's own rows stays in the second-level cache for all rows below it,
 * a piece of one panel (48 rows) in the first-level cache.
 *
 * A task is one block's columns in a few panels.  Threads take tasks in order,
 * block by block, from the diagonal downwards, and a task waits (spinning) only
 * for the panels that it reads, which belong to earlier tasks.  So the next
 * block begins while the last panels of this one are computed; there is no
 * barrier between blocks. */
#include "gptq/solve/cholesky.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "common/math/threads.h"

enum {
    ROWS = CHOLESKY_ROWS,
    COLS = FACTOR_PANEL,
    WIDTH = 4, /* panels of a block's diagonal part */
    BLOCK = WIDTH * ROWS,
    DEPTH = 128,
    GROUP = 8, /* panels whose sums stay in the second-level cache, at most */
    SPINS = 4096,
    ALONE = 6 /* up to so many panels one thread is faster than waking others */
};

struct work {
    float *a;
    const struct solve_kernels *k;
    uint64_t panels, group;
    _Atomic uint32_t *done; /* [panels]: blocks whose columns are final */
    atomic_size_t next;     /* task */
    atomic_bool failed;
};

/* The block that a task computes. */
struct step {
    float *a;
    const struct solve_kernels *k;
    uint64_t c0, c1; /* the block's columns */
};

static float *column(float *a, uint64_t q, uint64_t c)
{
    return a + cholesky_at(q) + c * ROWS;
}

/* Column c of the factor, from row `row` on. */
static const float *right(float *a, uint64_t row, uint64_t c)
{
    return column(a, row / ROWS, c) + row % ROWS;
}

/* Software prefetch: while column c of panel q is computed, request a share of
 * the next panel's piece and of the block's own next piece.  These streams are
 * too short for the hardware prefetcher. */
static void prefetch(const struct step *s, uint64_t q, uint64_t k, uint64_t c,
                     bool first)
{
    uint64_t lines = DEPTH * ROWS / 16, n = (s->c1 - s->c0) / COLS;
    uint64_t i = (c - s->c0) / COLS;
    const float *next = column(s->a, q + 1, k);

    if (k + DEPTH > s->c0)
        return;
    for (uint64_t j = lines * i / n; j < lines * (i + 1) / n; j++)
        __builtin_prefetch(next + 16 * j, 0, 2);
    if (k + 2 * DEPTH > s->c0 || !first)
        return;
    next = column(s->a, c / ROWS, k + DEPTH) + c % ROWS / COLS * DEPTH * COLS;
    for (uint64_t j = 0; j < DEPTH * COLS / 16; j++)
        __builtin_prefetch(next + 16 * j, 0, 2);
}

/* Subtract the product of columns 0..c0-1 from the block, in panels
 * first..end-1. */
static void update(const struct step *s, uint64_t first, uint64_t end)
{
    for (uint64_t k = 0; k < s->c0; k += DEPTH) {
        uint64_t n = s->c0 - k < DEPTH ? s->c0 - k : DEPTH;

        for (uint64_t q = first; q < end; q++) {
            uint64_t last = (q + 1) * ROWS < s->c1 ? (q + 1) * ROWS : s->c1;

            for (uint64_t c = s->c0; c < last; c += COLS) {
                const float *l = right(s->a, c + COLS < last ? c + COLS : c, k);

                if (q + 1 < end)
                    prefetch(s, q, k, c, q == first);
                for (uint64_t j = 0; j < 32; j++)
                    __builtin_prefetch(l + j * ROWS);
                s->k->subtract(column(s->a, q, c), column(s->a, q, k),
                               right(s->a, c, k), n, ROWS);
            }
        }
    }
}

/* Triangular solve of columns c0..c1-1 of panel q, a panel below the block's
 * diagonal part. */
static void solve_columns(const struct step *s, uint64_t q, uint64_t c1)
{
    for (uint64_t c = s->c0; c < c1; c += COLS) {
        s->k->subtract(column(s->a, q, c), column(s->a, q, s->c0),
                       right(s->a, c, s->c0), c - s->c0, ROWS);
        s->k->divide(column(s->a, q, c), right(s->a, c, c), ROWS);
    }
}

/* Factor columns row..row+7 of the panel that holds their diagonal; all columns
 * to the left have been subtracted.  Elements above the diagonal get values
 * without meaning, which are read only for other elements above the diagonal.
 * Returns 1: a pivot is not positive. */
static int finish_columns(float *x, uint64_t row)
{
    for (uint64_t c = 0; c < COLS; c++) {
        float *to = x + c * ROWS, pivot;

        for (uint64_t k = 0; k < c; k++) {
            float l = x[k * ROWS + row + c];

            for (uint64_t r = 0; r < ROWS; r++)
                to[r] -= x[k * ROWS + r] * l;
        }
        pivot = to[row + c];
        if (!(pivot > 0) || !isfinite(pivot))
            return 1;
        pivot = sqrtf(pivot);
        for (uint64_t r = 0; r < ROWS; r++)
            to[r] /= pivot;
        to[row + c] = pivot;
    }
    return 0;
}

static int solve_triangle(const struct step *s, uint64_t q)
{
    uint64_t first = q * ROWS;

    solve_columns(s, q, first);
    for (uint64_t c = first; c < first + ROWS; c += COLS) {
        s->k->subtract(column(s->a, q, c), column(s->a, q, s->c0),
                       right(s->a, c, s->c0), c - s->c0, ROWS);
        if (finish_columns(column(s->a, q, c), c - first))
            return 1;
    }
    return 0;
}

/* ---- tasks ---- */

/* Columns of block b in panels first..end-1: the block's diagonal part, or
 * panels below it. */
struct task {
    uint64_t b, first, end;
};

static struct task task_at(const struct work *w, uint64_t t)
{
    for (uint64_t b = 0;; b++) {
        uint64_t q0 = b * WIDTH, below, n;

        if (w->panels - q0 <= WIDTH)
            return (struct task){ b, q0 + t, q0 + t + 1 };
        if (t < WIDTH)
            return (struct task){ b, q0 + t, q0 + t + 1 };
        below = w->panels - q0 - WIDTH;
        n = (below + w->group - 1) / w->group;
        t -= WIDTH;
        if (t < n) {
            q0 += WIDTH;
            return (struct task){ b, q0 + below * t / n,
                                  q0 + below * (t + 1) / n };
        }
        t -= n;
    }
}

static uint64_t count_tasks(const struct work *w)
{
    uint64_t n = 0, left = w->panels;

    for (; left > WIDTH; left -= WIDTH)
        n += WIDTH + (left - WIDTH + w->group - 1) / w->group;
    return n + left;
}

/* Wait until panels first..end-1 have their first `blocks` blocks of columns.
 * No deadlock: tasks are taken in order, so the tasks waited for are running or
 * done.  False: another task has failed. */
static bool wait_for(struct work *w, uint64_t first, uint64_t end,
                     uint32_t blocks)
{
    for (uint64_t q = first; q < end; q++)
        for (int i = 0;
             atomic_load_explicit(&w->done[q], memory_order_acquire) < blocks;
             i++) {
            if (atomic_load_explicit(&w->failed, memory_order_relaxed))
                return false;
            if (i > SPINS)
                sched_yield();
        }
    return true;
}

static bool run_task(struct work *w, const struct task *t)
{
    uint64_t q0 = t->b * WIDTH, left = w->panels - q0;
    uint64_t q1 = q0 + (left < WIDTH ? left : WIDTH);
    struct step s = { w->a, w->k, q0 * ROWS, q1 * ROWS };
    uint32_t before = (uint32_t)t->b;
    bool diagonal = t->first < q1;

    if (!wait_for(w, q0, diagonal ? t->end : q1, before) ||
        !wait_for(w, t->first, t->end, before))
        return false;
    update(&s, t->first, t->end);
    if (!wait_for(w, q0, diagonal ? t->first : q1, before + 1))
        return false;
    for (uint64_t q = t->first; q < t->end; q++) {
        if (!diagonal)
            solve_columns(&s, q, s.c1);
        else if (solve_triangle(&s, q))
            return false;
        atomic_store_explicit(&w->done[q], before + 1, memory_order_release);
    }
    return true;
}

static void run_tasks(void *ctx, size_t begin, size_t end)
{
    struct work *w = ctx;
    uint64_t n = count_tasks(w), i;

    (void)begin, (void)end; /* each thread takes the next task left */
    while ((i = atomic_fetch_add(&w->next, 1)) < n) {
        struct task t = task_at(w, i);

        if (!run_task(w, &t)) {
            atomic_store(&w->failed, true);
            break;
        }
    }
}

int cholesky(float *a, uint64_t panels, _Atomic uint32_t *done)
{
    size_t threads = (size_t)threads_count();
    struct work w = { .a = a,
                      .k = solve_kernels_best(),
                      .panels = panels,
                      .group = panels / (4 * threads),
                      .done = done };

    w.group = w.group < 1 ? 1 : w.group > GROUP ? GROUP : w.group;
    for (uint64_t q = 0; q < panels; q++)
        atomic_init(&done[q], 0);
    if (panels <= ALONE)
        run_tasks(&w, 0, 1);
    else
        threads_for(threads, 1, run_tasks, &w);
    return atomic_load(&w.failed);
}
