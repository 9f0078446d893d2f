/* entry.h - the tensors that a checkpoint file's header declares.
 * safetensors.c and torchfile.c fill such lists; checkpoint_read() uses
 * them. */
#ifndef FORGE_ENTRY_H
#define FORGE_ENTRY_H

#include "checkpoint/checkpoint.h"
#include "common/io/file.h"

/* A tensor: a range of bytes in a file. */
struct ck_entry {
    char *name;
    enum dtype dtype;
    int ndim;
    uint64_t dims[CHECKPOINT_MAX_DIMS];
    uint64_t bytes;  /* of the contiguous tensor: product of dims times the
                      * type */
    uint64_t offset; /* of the first element in the file */
    bool strided;    /* stored with `stride`, not contiguous */
    uint64_t stride[CHECKPOINT_MAX_DIMS]; /* in elements */
    uint64_t span; /* strided: bytes from the first to the end of the last
                    * element */
    size_t shard;  /* index of the file */
    /* Set by view.c.  scale: the fp8 weight's scales, one per block of
     * block_rows x block_cols; NULL: none. */
    const struct ck_entry *scale;
    uint64_t block_rows, block_cols;
    bool mxfp4; /* the bytes of MXFP4 codes, [outputs, inputs / 2]; scale: of 32
                 * inputs (mxfp4.h) */
    const int32_t *pick; /* set by expertmap.c: only these n_pick indices of
                          * dims[0]; NULL: all */
    uint64_t n_pick;
};

/* A growing list.  Zero-initialise. */
struct ck_list {
    struct ck_entry *item;
    size_t count, cap;
};

/* Append a zeroed entry of this name, len bytes, copied.  NULL: *e is E_TEMP.
 * Valid until the next call. */
MUST_CHECK struct ck_entry *ck_list_add(struct ck_list *l, const char *name,
                                        size_t len, struct err *e);
void ck_list_release(struct ck_list *l);
/* Set strided and span from dims (none 0) and stride.  False: overflow. */
MUST_CHECK bool ck_entry_strides(struct ck_entry *en);

/* Set bytes from dtype and dims.  False: the product overflows, taken from
 * left to right as in safetensors, or is not a whole number of bytes. */
MUST_CHECK bool ck_entry_size(struct ck_entry *en);
/* Read the tensor from its file f into buf[bytes], contiguous and row-major.
 * E_DATA, E_IO, E_TEMP. */
MUST_CHECK int ck_entry_read(const struct ck_entry *en, struct file *f,
                             void *buf, struct err *e);

#endif
