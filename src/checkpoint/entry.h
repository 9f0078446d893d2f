/* entry.h - what the directory of one checkpoint file says: a list of
 * tensors, each a run of bytes in the file.
 *
 * safetensors.c and torchfile.c fill such lists; checkpoint_read() goes by them. */
#ifndef FORGE_ENTRY_H
#define FORGE_ENTRY_H

#include "checkpoint/checkpoint.h"
#include "common/io/file.h"

struct ck_entry {
    char *name;
    enum dtype dtype;
    int ndim;
    uint64_t dims[CHECKPOINT_MAX_DIMS];
    uint64_t bytes;  /* contiguous: dims times dtype */
    uint64_t offset; /* of the first element, in the file */
    bool strided;    /* stored with the strides below, not contiguous */
    uint64_t stride[CHECKPOINT_MAX_DIMS]; /* in elements */
    uint64_t span; /* strided: bytes from the first to the last element */
    size_t shard;  /* which file */
    /* view.c: what is shown of it is something else */
    const struct ck_entry *scale;    /* fp8: times these; NULL: as stored */
    uint64_t block_rows, block_cols; /* ... one for each such block */
    const int32_t *pick; /* expertmap.c: only these of dims[0]; NULL: all */
    uint64_t n_pick;
};

struct ck_list {
    struct ck_entry *item;
    size_t count, cap;
};

/* Append a zeroed entry of this name (len bytes, copied); NULL with *e set
 * when memory is short. */
MUST_CHECK struct ck_entry *ck_list_add(struct ck_list *l, const char *name,
                                        size_t len, struct err *e);
void ck_list_release(struct ck_list *l);
/* Set strided and span from dims, none of them 0, and stride: false when it
 * overflows. */
MUST_CHECK bool ck_entry_strides(struct ck_entry *en);

/* Set en->bytes from dtype and dims: false when the product overflows, taken
 * left to right as safetensors does, or does not end on a byte. */
MUST_CHECK bool ck_entry_size(struct ck_entry *en);
/* Read the tensor out of its file into buf, contiguous and row-major.
 * E_DATA, E_IO, E_TEMP. */
MUST_CHECK int ck_entry_read(const struct ck_entry *en, struct file *f,
                             void *buf, struct err *e);

#endif
