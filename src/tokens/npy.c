/* npy.c - ids from a NumPy array file: int32 or int64, [n, T] or [T]. */
#include "tokens/npy.h"

#include <stdlib.h>
#include <string.h>

#include "common/io/npy.h"

struct npy {
    size_t header; /* bytes before the data */
    size_t width;  /* 4 or 8 */
    uint64_t rows, cols;
};

static int read_header(struct npy *a, struct input *in, struct err *e)
{
    struct npy_header h;
    size_t text, n;

    if (input_fill(in, NPY_BEGIN, e) < 0)
        return e->code;
    if (in->len < NPY_BEGIN)
        return err_set(e, E_DATA, "not a .npy file");
    if (npy_begin((const unsigned char *)in->data, &text, &n, e))
        return e->code;
    a->header = text + n;
    if (input_fill(in, a->header, e) < 0)
        return e->code;
    if (in->len < a->header)
        return err_set(e, E_DATA, "npy: ends in the header");
    if (npy_header(&h, in->data + text, n, e))
        return e->code;
    a->width = !strcmp(h.type, "<i4") ? 4 : !strcmp(h.type, "<i8") ? 8 : 0;
    if (!a->width)
        return err_set(e, E_DATA,
                       "npy: want int32 or int64 ids, little-endian");
    if (h.ndim < 1 || h.ndim > 2)
        return err_set(e, E_DATA, "npy: shape is not (n, T)");
    a->rows = h.ndim == 2 ? h.dims[0] : 1;
    a->cols = h.dims[h.ndim - 1];
    return a->rows && a->cols ? 0 : err_set(e, E_DATA, "npy: no ids");
}

static int read_row(struct sequences *s, const struct sequences_params *p,
                    const struct npy *a, uint64_t row, const char *data,
                    struct token_ids *ids, struct err *e)
{
    ids->count = 0;
    for (uint64_t i = 0; i < a->cols; i++) {
        int64_t v = 0;
        int32_t id;

        if (a->width == 4) {
            memcpy(&id, data + 4 * i, 4);
            v = id;
        } else
            memcpy(&v, data + 8 * i, 8);
        if (v < 0 || v > INT32_MAX || (p->vocab_size && v >= p->vocab_size))
            return err_set(e, E_DATA,
                           "npy: row %llu, column %llu: id %lld is not in "
                           "0..%lld",
                           (unsigned long long)row, (unsigned long long)i,
                           (long long)v,
                           p->vocab_size ? (long long)p->vocab_size - 1 :
                                           (long long)INT32_MAX);
        id = (int32_t)v;
        if (token_ids_add(ids, &id, 1, e) < 0)
            return e->code;
    }
    return sequences_add(s, p, ids->id, ids->count, e);
}

int sequences_npy(struct sequences *s, const struct sequences_params *p,
                  struct input *in, struct err *e)
{
    struct token_ids ids = { 0 };
    struct npy a = { 0 };
    size_t bytes;
    int rc = 0;

    s->format = "npy";
    if (p->skip_chars)
        return err_set(e, E_USAGE,
                       "--skip-chars counts characters of text, "
                       "and this input holds ids");
    if (read_header(&a, in, e) < 0)
        return e->code;
    bytes = (size_t)a.cols * a.width; /* no overflow: below 2^36 */
    input_drop(in, a.header);
    for (uint64_t row = 0; row < a.rows && !rc; row++) {
        if (!p->whole && row == (uint64_t)p->n)
            break;
        rc = input_fill(in, bytes, e);
        if (!rc && in->len < bytes)
            rc = err_set(e, E_DATA, "npy: ends in row %llu of %llu, cut short",
                         (unsigned long long)row, (unsigned long long)a.rows);
        if (!rc)
            rc = read_row(s, p, &a, row, in->data, &ids, e);
        if (!rc)
            input_drop(in, bytes);
    }
    if (!rc && s->count == a.rows) {
        rc = input_fill(in, 1, e);
        if (!rc && in->len)
            rc = err_set(e, E_DATA, "npy: data beyond the array");
    }
    free(ids.id);
    return rc;
}
