/* product_weights.c - see internal.h: weights in the form that products read. */
#include <stdlib.h>
#include <string.h>

#include "common/math/bf16_gemm.h"
#include "common/math/blas.h"
#include "common/math/threads.h"
#include "model/internal.h"

/* Packing of a group of rows of W. */
struct packing {
    uint16_t *from, *to;
    uint16_t *room; /* copy of the group, to pack in place; NULL: to and from
                     * differ */
    int64_t rows, cols;
};

static void copy_panels(void *ctx, size_t begin, size_t end)
{
    const struct packing *j = ctx;
    int64_t at = (int64_t)begin * GEMM_COLS, n = (int64_t)end * GEMM_COLS - at;

    n = j->rows - at < n ? j->rows - at : n;
    memcpy(j->room + at * j->cols, j->from + at * j->cols,
           (size_t)(n * j->cols) * sizeof(*j->room));
}

static void pack_panels(void *ctx, size_t begin, size_t end)
{
    const struct packing *j = ctx;

    bf16_gemm_pack(j->to, j->room ? j->room : j->from, j->rows, j->cols,
                   (int64_t)begin, (int64_t)end);
}

static void pack_groups(uint16_t *to, uint16_t *from, uint16_t *room,
                        int64_t rows, int64_t cols)
{
    int64_t group = bf16_gemm_group(), depth = bf16_gemm_depth(cols);

    for (int64_t o = 0; o < rows; o += group) {
        struct packing j = { from + o * cols, to + o * depth, room,
                             rows - o < group ? rows - o : group, cols };
        size_t panels = (size_t)((j.rows + GEMM_COLS - 1) / GEMM_COLS);

        if (room)
            threads_for(panels, 2, copy_panels, &j);
        threads_for(panels, 2, pack_panels, &j);
    }
}

int product_pack(const struct model *m, int64_t rows, int64_t cols, void **w,
                 struct err *e)
{
    size_t bytes = bf16_gemm_packed(rows, cols) * sizeof(uint16_t);
    bool apart = bf16_gemm_depth(cols) != cols;
    int64_t group = bf16_gemm_group() < rows ? bf16_gemm_group() : rows;
    uint16_t *room;

    if (!m->bf16)
        return blas_open(e);
    if (!apart && rows % GEMM_COLS && mem_grow(w, bytes, "weights", e) < 0)
        return e->code;
    room = mem_pages(apart ? bytes : (size_t)(group * cols) * sizeof(*room),
                     "weights", e);
    if (!room)
        return e->code;
    pack_groups(apart ? room : *w, *w, apart ? NULL : room, rows, cols);
    free(apart ? *w : room);
    *w = apart ? room : *w;
    return 0;
}

void loaded_release_fp8(struct loaded *l)
{
    free((void *)(uintptr_t)l->fp8.data);
    free((void *)(uintptr_t)l->fp8.scale);
    l->fp8.data = NULL;
    l->fp8.scale = NULL;
}

/* Move the weights to device memory, in the form that they have. */
static int place_weights(struct model *m, struct loaded *l, struct err *e)
{
    void *host = l->w;
    int rc;

    l->w = NULL;
    if (l->words.codes)
        rc = m->on->linear(m->context, &l->words.of, &l->on_device, e);
    else if (l->codes.nibbles)
        rc = m->on->codes(m->context, &l->codes, &l->w, e);
    else if (l->fp8.data)
        rc = m->on->fp8(m->context, &l->fp8, &l->w, e);
    else
        rc = m->on->weight(m->context, m->dtype, l->of.rows, l->of.cols, host,
                           &l->w, e);
    if (rc < 0 && l->words.codes)
        err_prefix(e, "'%.200s'", l->of.module);
    ck_words_release(&l->words);
    loaded_release_fp8(l);
    l->codes.nibbles = NULL;
    free(host);
    return rc;
}

int loaded_place(struct model *m, struct loaded *l, struct err *e)
{
    int rc;

    if (m->looks || (!m->on && l->q))
        return 0;
    if (!m->on)
        return product_pack(m, l->of.rows, l->of.cols, &l->w, e);
    if (l->placed)
        return 0;
    rc = l->borrowed ? 0 : place_weights(m, l, e);
    if (rc < 0)
        return rc;
    l->placed = m; /* model_place() below moves the bias, or frees it on
                    * error */
    return model_place(m, (void **)&l->bias,
                       (size_t)l->of.rows * sizeof(*l->bias), e);
}
