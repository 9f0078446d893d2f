/* npy_array.c - see npy_array.h. */
#include "calib/npy_array.h"

#include <stdlib.h>
#include <string.h>

#include "common/io/npy.h"

static int parse(struct npy_array *a, const struct npy_header *h, uint64_t size,
                 struct err *e)
{
    uint64_t bytes;

    a->dtype = !strcmp(h->type, "<f2") ? DT_F16 :
               !strcmp(h->type, "<f4") ? DT_F32 :
               !strcmp(h->type, "<f8") ? DT_F64 :
                                         DT_NONE;
    if (a->dtype == DT_NONE)
        return err_set(e, E_DATA,
                       "npy: want float16, float32 or float64, little-endian");
    a->ndim = h->ndim;
    memcpy(a->dims, h->dims, sizeof(a->dims));
    if (!dtype_size(a->dtype, a->ndim, a->dims, &bytes) || size < a->offset ||
        bytes != size - a->offset)
        return err_set(e, E_DATA, "npy: is not of the size that it says");
    return 0;
}

int npy_array_read(struct npy_array *a, struct file *f, struct err *e)
{
    unsigned char first[NPY_BEGIN];
    struct npy_header h;
    size_t text, n;
    char *header;
    int rc;

    *a = (struct npy_array){ .dtype = DT_NONE };
    if (file_size(f) < NPY_BEGIN)
        return err_set(e, E_DATA, "not a .npy file");
    if (file_read(f, first, NPY_BEGIN, 0, e) || npy_begin(first, &text, &n, e))
        return e->code;
    a->offset = text + n;
    header = mem_alloc(n + 1, "npy", e);
    if (!header)
        return e->code;
    rc = file_read(f, header, n, text, e);
    if (!rc)
        rc = npy_header(&h, header, n, e);
    if (!rc)
        rc = parse(a, &h, file_size(f), e);
    free(header);
    return rc;
}
