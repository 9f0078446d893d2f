/* npy.h - the header of a NumPy array file, as numpy.save writes it:
 *
 *     "\x93NUMPY", version, length of the text (NPY_BEGIN bytes at most)
 *     {'descr': '<i4', 'fortran_order': False, 'shape': (128, 512), } */
#ifndef FORGE_COMMON_NPY_H
#define FORGE_COMMON_NPY_H

#include "common/base.h"

/* How a file begins. */
#define NPY_MAGIC "\x93NUMPY"
enum { NPY_BEGIN = 12, NPY_DIMS = 8 };

struct npy_header {
    char type[4]; /* "<i4"; "": another kind */
    int ndim;
    uint64_t dims[NPY_DIMS]; /* each below 2^32 */
};

/* *text: bytes in front of the text, *len: its own, by the first NPY_BEGIN bytes of a
 * file.  E_DATA: not such a file. */
MUST_CHECK int npy_begin(const unsigned char first[NPY_BEGIN], size_t *text,
                         size_t *len, struct err *e);
/* Parse the text, of len bytes.  E_DATA: no such header, or elements in
 * Fortran's order; E_TEMP. */
MUST_CHECK int npy_header(struct npy_header *h, const char *text, size_t len,
                          struct err *e);

#endif
