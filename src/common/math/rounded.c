/* rounded.c - see rounded.h. */
#include "common/math/rounded.h"

#include <stdlib.h>

#include "common/math/bf16_gemm.h"
#include "common/math/dtype.h"
#include "common/math/threads.h"

enum {
    BLOCK = 32, /* rows, and */
    STEP = 16,  /* inputs that are transposed at a time */
    FEW = 48    /* tokens */
};

static bool rounds;

void rounded_set(bool on)
{
    rounds = on;
}

bool rounded(int64_t tokens)
{
    return rounds && tokens >= FEW;
}

/* ---- rounding ---- */

/* to[n, k] = from[n, k], or its transpose from[k, n]. */
struct rounding {
    const float *from;
    bool transposed;
    int64_t ld, n, k;
    uint16_t *to;
};

/* Rows at..at+n-1, n <= BLOCK, from columns. */
static void round_columns(const struct rounding *j, int64_t at, int64_t n)
{
    uint16_t part[STEP][BLOCK];

    for (int64_t i = 0; i < j->k; i += STEP) {
        int64_t some = j->k - i < STEP ? j->k - i : STEP;

        for (int64_t t = 0; t < some; t++)
            (void)!from_f32(part[t], DT_BF16, j->from + (i + t) * j->ld + at,
                            (size_t)n);
        for (int64_t r = 0; r < n; r++)
            for (int64_t t = 0; t < some; t++)
                j->to[(at + r) * j->k + i + t] = part[t][r];
    }
}

static void round_blocks(void *ctx, size_t begin, size_t end)
{
    const struct rounding *j = ctx;

    for (int64_t b = (int64_t)begin; b < (int64_t)end; b++) {
        int64_t at = b * BLOCK, n = j->n - at < BLOCK ? j->n - at : BLOCK;

        if (j->transposed)
            round_columns(j, at, n);
        for (int64_t r = at; r < at + n && !j->transposed; r++)
            (void)!from_f32(j->to + r * j->k, DT_BF16, j->from + r * j->ld,
                            (size_t)j->k);
    }
}

static void round_all(struct rounding *j)
{
    threads_for((size_t)((j->n + BLOCK - 1) / BLOCK), 1, round_blocks, j);
}

static uint16_t *room_for(size_t n, struct err *e)
{
    return mem_pages((n + 1) * sizeof(uint16_t), "products", e);
}

/* ---- packing ---- */

struct packing {
    const uint16_t *from;
    struct rounded_operand *to;
};

static void pack_panels(void *ctx, size_t begin, size_t end)
{
    const struct packing *j = ctx;
    int64_t group = bf16_gemm_group(), k = j->to->k;

    for (int64_t p = (int64_t)begin; p < (int64_t)end; p++) {
        int64_t at = p * GEMM_COLS / group * group, left = j->to->n - at;
        int64_t in = p - at / GEMM_COLS;

        bf16_gemm_pack(j->to->packed + at * bf16_gemm_depth(k),
                       j->from + at * k, left < group ? left : group, k, in,
                       in + 1);
    }
}

int rounded_pack(struct rounded_operand *to, const float *b, bool tb,
                 int64_t ld, int64_t n, int64_t k, struct err *e)
{
    struct rounding j = { b, !tb, ld ? ld : tb ? k : n, n, k, NULL };
    struct packing p = { .to = to };

    *to = (struct rounded_operand){ .n = n, .k = k };
    j.to = room_for((size_t)(n * k), e);
    to->packed = j.to ? room_for(bf16_gemm_packed(n, k), e) : NULL;
    if (to->packed) {
        round_all(&j);
        p.from = j.to;
        threads_for((size_t)((n + GEMM_COLS - 1) / GEMM_COLS), 1, pack_panels,
                    &p);
    }
    free(j.to);
    return to->packed ? 0 : e->code;
}

void rounded_release(struct rounded_operand *b)
{
    free(b->packed);
    *b = (struct rounded_operand){ 0 };
}

/* ---- products ---- */

struct job {
    struct bf16_gemm all;
    int64_t rows, cols, across; /* of a tile; tiles of a row of tiles */
};

static void run_tiles(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;

    for (int64_t t = (int64_t)begin; t < (int64_t)end; t++) {
        int64_t i = t / j->across * j->rows, o = t % j->across * j->cols;
        struct bf16_gemm g = j->all;

        g.m = g.m - i < j->rows ? g.m - i : j->rows;
        g.n = g.n - o < j->cols ? g.n - o : j->cols;
        g.first = o;
        g.x += i * g.ldx;
        g.y += i * g.ldy + o;
        bf16_gemm(&g);
    }
}

/* Tiles as large as the caches allow, but enough for all threads. */
static void run_all(struct job *j)
{
    const struct bf16_kernel *k = bf16_kernel();
    int64_t want = 2 * threads_count(), down;

    j->rows = k->tile_rows;
    j->cols = k->tile_cols;
    down = (j->all.m + j->rows - 1) / j->rows;
    while (j->cols > GEMM_COLS &&
           down * ((j->all.n + j->cols - 1) / j->cols) < want)
        j->cols = j->cols / 2 / GEMM_COLS * GEMM_COLS;
    j->across = (j->all.n + j->cols - 1) / j->cols;
    threads_for((size_t)(down * j->across), 1, run_tiles, j);
}

static struct bf16_gemm product_of(const struct rounded_operand *b,
                                   const uint16_t *x, int64_t m, float *y,
                                   int64_t ldy)
{
    return (struct bf16_gemm){ .x = x,
                               .ldx = b->k,
                               .m = m,
                               .k = b->k,
                               .packed = b->packed,
                               .all = b->n,
                               .n = b->n,
                               .y = y,
                               .ldy = ldy };
}

void rounded_multiply(const struct rounded_operand *b, const float *x,
                      int64_t m, uint16_t *room, float *y, bool add)
{
    struct job j = { .all = product_of(b, room, m, y, b->n) };

    j.all.continues = add;

    (void)!from_f32(room, DT_BF16, x, (size_t)(m * b->k));
    j.rows = m;
    j.cols = bf16_gemm_group();
    j.across = (b->n + j.cols - 1) / j.cols;
    run_tiles(&j, 0, (size_t)j.across);
}

int rounded_gemm(const struct sgemm *g, struct err *e)
{
    struct rounding x = { g->a, g->ta, g->lda, g->m, g->k, NULL };
    struct rounded_operand b;
    struct job j;

    x.ld = g->lda ? g->lda : g->ta ? g->m : g->k;
    if (rounded_pack(&b, g->b, g->tb, g->ldb, g->n, g->k, e) < 0)
        return e->code;
    x.to = room_for((size_t)(g->m * g->k), e);
    if (!x.to) {
        rounded_release(&b);
        return e->code;
    }
    round_all(&x);
    j.all = product_of(&b, x.to, g->m, g->c, g->ldc ? g->ldc : g->n);
    j.all.continues = g->beta != 0;
    run_all(&j);
    free(x.to);
    rounded_release(&b);
    return 0;
}
