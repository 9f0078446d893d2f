/* npy.c - ids from a NumPy array file: int32 or int64, [n, T] or [T].
 *
 * The header is a Python dictionary in text, as numpy.save writes it:
 *     {'descr': '<i4', 'fortran_order': False, 'shape': (128, 512), } */
#include "tokens/npy.h"

#include <stdlib.h>
#include <string.h>

struct npy {
    size_t header; /* bytes before the data */
    size_t width;  /* 4 or 8 */
    uint64_t rows, cols;
};

/* The text behind "key:" in the header; key has its quotes.  NULL: no such
 * key. */
static const char *value_of(const char *header, const char *key)
{
    const char *at = strstr(header, key);

    if (!at)
        return NULL;
    at += strlen(key);
    at += strspn(at, " ");
    return *at == ':' ? at + 1 + strspn(at + 1, " ") : NULL;
}

static int read_shape(struct npy *a, const char *text, struct err *e)
{
    uint64_t dim[2] = { 0 };
    int n = 0;

    if (!text || *text++ != '(')
        return err_set(e, E_DATA, "npy: no shape");
    for (;; n++) {
        char *end;

        text += strspn(text, " ,");
        if (*text == ')')
            break;
        if (n == 2)
            return err_set(e, E_DATA, "npy: more than two dimensions");
        if (*text < '0' || *text > '9')
            return err_set(e, E_DATA, "npy: shape is not (n, T)");
        dim[n] = strtoull(text, &end, 10);
        if (dim[n] > UINT32_MAX)
            return err_set(e, E_DATA, "npy: shape is too large");
        text = end;
    }
    if (!n)
        return err_set(e, E_DATA, "npy: a single number is no sequence");
    a->rows = n == 2 ? dim[0] : 1;
    a->cols = n == 2 ? dim[1] : dim[0];
    return a->rows && a->cols ? 0 : err_set(e, E_DATA, "npy: no ids");
}

static int read_header(struct npy *a, struct input *in, struct err *e)
{
    const unsigned char *p;
    const char *text;
    char *header;
    size_t n, start;
    int rc;

    if (input_fill(in, 12, e) < 0)
        return e->code;
    p = (const unsigned char *)in->data;
    if (in->len < 12 || memcmp(p, "\x93NUMPY", 6))
        return err_set(e, E_DATA, "not a .npy file");
    if (p[6] < 1 || p[6] > 3)
        return err_set(e, E_DATA, "npy: version %d is not known", p[6]);
    n = p[8] | (size_t)p[9] << 8;
    start = 10;
    if (p[6] > 1) {
        n |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
        start = 12;
    }
    if (n > 65536)
        return err_set(e, E_DATA, "npy: header is too long");
    a->header = start + n;
    if (input_fill(in, a->header, e) < 0)
        return e->code;
    if (in->len < a->header)
        return err_set(e, E_DATA, "npy: ends in the header");
    header = mem_alloc(n + 1, "npy", e);
    if (!header)
        return e->code;
    memcpy(header, in->data + start, n);
    header[n] = 0;
    text = value_of(header, "'descr'");
    a->width = !text                      ? 0 :
               !strncmp(text, "'<i4'", 5) ? 4 :
               !strncmp(text, "'<i8'", 5) ? 8 :
                                            0;
    text = value_of(header, "'fortran_order'");
    if (!a->width)
        rc = err_set(e, E_DATA, "npy: want int32 or int64 ids, little-endian");
    else if (!text || strncmp(text, "False", 5))
        rc = err_set(e, E_DATA, "npy: fortran_order is not supported");
    else
        rc = read_shape(a, value_of(header, "'shape'"), e);
    free(header);
    return rc;
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
