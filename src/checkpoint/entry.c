/* entry.c - tensors of a file: the list, their sizes, their bytes. */
#include "checkpoint/entry.h"

#include <stdlib.h>
#include <string.h>

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

/* Copy the elements of dimensions dim.. from src to *dst, and move *dst. */
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

int ck_entry_read(const struct ck_entry *en, struct file *f, void *buf,
                  struct err *e)
{
    uint8_t *part, *dst = buf;
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
        gather(en, 0, part, &dst, dtype_bits(en->dtype) / 8);
    free(part);
    return r;
}
