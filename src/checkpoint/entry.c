/* entry.c - see entry.h. */
#include "checkpoint/entry.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = 32 };

struct ck_entry *ck_list_add(struct ck_list *l, const char *name, size_t len,
                             struct err *e)
{
    struct ck_entry *en;

    if (l->count == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 16;

        if (mem_grow(&l->item, cap * sizeof(*l->item), "checkpoint", e))
            return NULL;
        l->cap = cap;
    }
    en = &l->item[l->count];
    memset(en, 0, sizeof(*en));
    en->name = mem_alloc(len + 1, "checkpoint", e);
    if (!en->name)
        return NULL;
    memcpy(en->name, name, len);
    en->name[len] = '\0';
    l->count++;
    return en;
}

void ck_list_release(struct ck_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->item[i].name);
    free(l->item);
    memset(l, 0, sizeof(*l));
}

bool ck_entry_size(struct ck_entry *en)
{
    uint64_t n = 1;

    for (int i = 0; i < en->ndim; i++)
        if (size_mul(n, en->dims[i], &n))
            return false;
    if (size_mul(n, (uint64_t)dtype_bits(en->dtype), &n) || n % 8)
        return false;
    en->bytes = n / 8;
    return true;
}

/* Bytes from the first to the end of the last element; false: overflow. */
static bool span_of(const struct ck_entry *en, uint64_t *span)
{
    uint64_t elements = 1;

    for (int i = 0; i < en->ndim; i++) {
        uint64_t reach;

        if (size_mul(en->dims[i] - 1, en->stride[i], &reach) ||
            size_add(elements, reach, &elements))
            return false;
    }
    return !size_mul(elements, (uint64_t)dtype_bits(en->dtype) / 8, span);
}

static bool is_contiguous(const struct ck_entry *en)
{
    uint64_t step = 1;

    for (int i = en->ndim - 1; i >= 0; i--) {
        if (en->dims[i] != 1 && en->stride[i] != step)
            return false;
        step *= en->dims[i];
    }
    return true;
}

bool ck_entry_strides(struct ck_entry *en)
{
    en->strided = !is_contiguous(en);
    return span_of(en, &en->span);
}

/* Copy the elements of dimensions dim.. from src to *dst, contiguously;
 * advances *dst. */
static void gather(const struct ck_entry *en, int dim, const uint8_t *src,
                   uint8_t **dst, size_t size)
{
    size_t step = en->stride[dim] * size;

    if (dim + 1 < en->ndim) {
        for (uint64_t i = 0; i < en->dims[dim]; i++)
            gather(en, dim + 1, src + i * step, dst, size);
    } else if (step == size) {
        memcpy(*dst, src, en->dims[dim] * size);
        *dst += en->dims[dim] * size;
    } else {
        for (uint64_t i = 0; i < en->dims[dim]; i++, *dst += size)
            memcpy(*dst, src + i * step, size);
    }
}

/* A column-major matrix, in tiles that fit the cache. */
static void transpose(const struct ck_entry *en, const uint8_t *src,
                      uint8_t *dst, size_t size)
{
    uint64_t rows = en->dims[0], cols = en->dims[1];
    size_t down = en->stride[0] * size, right = en->stride[1] * size;

    for (uint64_t r0 = 0; r0 < rows; r0 += TILE)
        for (uint64_t c0 = 0; c0 < cols; c0 += TILE) {
            uint64_t r1 = rows - r0 < TILE ? rows : r0 + TILE;
            uint64_t c1 = cols - c0 < TILE ? cols : c0 + TILE;

            for (uint64_t r = r0; r < r1; r++)
                for (uint64_t c = c0; c < c1; c++)
                    memcpy(dst + (r * cols + c) * size,
                           src + r * down + c * right, size);
        }
}

static void gather_all(const struct ck_entry *en, const uint8_t *src,
                       uint8_t *dst)
{
    size_t size = dtype_bits(en->dtype) / 8;

    if (en->ndim != 2 || en->stride[0] != 1)
        gather(en, 0, src, &dst, size);
    else if (size == 1) /* with a constant size memcpy is a move */
        transpose(en, src, dst, 1);
    else if (size == 2)
        transpose(en, src, dst, 2);
    else
        transpose(en, src, dst, size);
}

int ck_entry_read(const struct ck_entry *en, struct file *f, void *buf,
                  struct err *e)
{
    uint8_t *part;
    int r;

    if (!en->bytes)
        return 0;
    if (!en->strided)
        return file_read(f, buf, en->bytes, en->offset, e);
    part = mem_pages(en->span, en->name, e);
    if (!part)
        return e->code;
    r = file_read(f, part, en->span, en->offset, e);
    if (!r)
        gather_all(en, part, buf);
    free(part);
    return r;
}
