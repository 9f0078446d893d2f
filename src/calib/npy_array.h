/* npy_array.h - where the elements of a NumPy array file of floats are. */
#ifndef FORGE_NPY_ARRAY_H
#define FORGE_NPY_ARRAY_H

#include "common/io/file.h"
#include "common/io/npy.h"
#include "common/math/dtype.h"

struct npy_array {
    enum dtype dtype; /* DT_F16, DT_F32, DT_F64 */
    int ndim;
    uint64_t dims[NPY_DIMS], offset; /* offset: of the first element */
};

/* E_DATA: not such a file, of another type or order, or not of the size that it
 * says; E_IO, E_TEMP. */
MUST_CHECK int npy_array_read(struct npy_array *a, struct file *f,
                              struct err *e);

#endif
