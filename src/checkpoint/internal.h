/* internal.h - struct checkpoint, for the files of src/checkpoint alone. */
#ifndef FORGE_CHECKPOINT_INTERNAL_H
#define FORGE_CHECKPOINT_INTERNAL_H

#include "checkpoint/entry.h"
#include "checkpoint/quantconfig.h"
#include "common/io/modeldir.h"

enum shard_kind { SHARD_SAFETENSORS, SHARD_TORCH };

struct shard {
    char *name;
    uint64_t size;     /* when its directory was read */
    struct file *file; /* NULL while closed */
    uint64_t used;     /* when last read from */
};

struct checkpoint {
    char *path; /* of the directory */
    char *only; /* checkpoint_open() was given this file of it; else NULL */
    struct modeldir dir;
    enum shard_kind kind;
    struct shard *shard;
    size_t n_shards;
    uint64_t clock;           /* counts reads, for shard.used */
    struct ck_list list;      /* in the order of the files */
    struct ck_list aside;     /* read with others, not shown: view.h */
    bool mixtral;             /* a family that says block_sparse_moe */
    struct ck_tensor *tensor; /* the same order; .where is the entry */
    size_t *by_name;          /* indices of tensor[], sorted by name */
    struct quant_spec quant;
    uint64_t fingerprint;
};

/* Make tensor[] and by_name[] from the list.  E_DATA: a name is twice in
 * there. */
MUST_CHECK int checkpoint_index(struct checkpoint *c, struct err *e);
/* Open shard i, closing others when too many are open. */
MUST_CHECK int checkpoint_shard(struct checkpoint *c, size_t i, struct file **f,
                                struct err *e);

#endif
