/* npy.c - see npy.h. */
#include "common/io/npy.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 65536 };

int npy_begin(const unsigned char first[NPY_BEGIN], size_t *text, size_t *len,
              struct err *e)
{
    if (memcmp(first, NPY_MAGIC, sizeof(NPY_MAGIC) - 1) != 0)
        return err_set(e, E_DATA, "not a .npy file");
    if (first[6] < 1 || first[6] > 3)
        return err_set(e, E_DATA, "npy: version %d is not known", first[6]);
    *text = first[6] > 1 ? 12 : 10;
    *len = first[8] | (size_t)first[9] << 8;
    if (first[6] > 1)
        *len |= (size_t)first[10] << 16 | (size_t)first[11] << 24;
    return *len <= TEXT_MAX ? 0 : err_set(e, E_DATA, "npy: header is too long");
}

/* The text behind "key:" in the header; key has its quotes.  "": no such key. */
static const char *value_of(const char *header, const char *key)
{
    const char *at = strstr(header, key);

    if (!at)
        return "";
    at += strlen(key);
    at += strspn(at, " ");
    return *at == ':' ? at + 1 + strspn(at + 1, " ") : "";
}

static int read_shape(struct npy_header *h, const char *text, struct err *e)
{
    char *end;

    if (*text++ != '(')
        return err_set(e, E_DATA, "npy: no shape");
    for (;; h->ndim++, text = end) {
        text += strspn(text, " ,");
        if (*text == ')')
            return 0;
        if (h->ndim == NPY_DIMS || *text < '0' || *text > '9')
            return err_set(e, E_DATA, "npy: shape is no list of up to %d sizes",
                           NPY_DIMS);
        h->dims[h->ndim] = strtoull(text, &end, 10);
        if (h->dims[h->ndim] > UINT32_MAX)
            return err_set(e, E_DATA, "npy: shape is too large");
    }
}

int npy_header(struct npy_header *h, const char *text, size_t len,
               struct err *e)
{
    char *copy = mem_text(text, len, "npy", e);
    const char *type;
    int rc = 0;

    *h = (struct npy_header){ 0 };
    if (!copy)
        return e->code;
    type = value_of(copy, "'descr'");
    if (*type == '\'' && strcspn(type + 1, "'") == 3)
        memcpy(h->type, type + 1, 3);
    if (strncmp(value_of(copy, "'fortran_order'"), "False", 5) != 0)
        rc = err_set(e, E_DATA, "npy: fortran_order is not supported");
    else
        rc = read_shape(h, value_of(copy, "'shape'"), e);
    free(copy);
    return rc;
}
