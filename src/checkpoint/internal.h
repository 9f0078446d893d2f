/* internal.h - struct checkpoint; for the files of src/checkpoint only. */
#ifndef FORGE_CHECKPOINT_INTERNAL_H
#define FORGE_CHECKPOINT_INTERNAL_H

#include <pthread.h>

#include "checkpoint/entry.h"
#include "checkpoint/quantconfig.h"
#include "common/io/modeldir.h"

/* Format of all files of a checkpoint. */
enum shard_kind { SHARD_SAFETENSORS, SHARD_TORCH };

/* What the names of the language model's tensors and of its head begin with. */
struct wrapping {
    const char *model, *head;
};

/* A file of the checkpoint. */
struct shard {
    char *name;
    uint64_t size;     /* when the header was read */
    struct file *file; /* NULL: closed */
    uint64_t used;     /* clock at its last use */
    int users;         /* who read it now: it stays open */
};

/* An open checkpoint. */
struct checkpoint {
    char *path; /* of the directory */
    char *only; /* the single file that was opened, by name; NULL: a
                 * directory */
    struct modeldir dir;
    enum shard_kind kind;
    struct shard *shard;
    size_t n_shards;
    uint64_t clock;       /* counts uses of shards */
    pthread_mutex_t lock; /* of the clock, and of the shards' files and users */
    struct ck_list list;  /* tensors of the view, in the order of the files */
    struct wrapping wrapping; /* of the names in the files; all NULL without a
                               * view */
    struct ck_list aside;     /* scales that the view reads and does not show */
    struct ck_list mx_scales; /* the same of MXFP4 */
    bool mixtral;     /* the family's experts are under block_sparse_moe */
    bool interleaved; /* its fused gate and up are: outputs 2i, 2i + 1 */
    int64_t keys_end; /* layers from here on use the keys and values of another
                       * one; 0: none does */
    struct ck_tensor *tensor; /* the same in the same order; .where is the
                               * entry */
    size_t *by_name;          /* indices into tensor[], sorted by name */
    struct quant_spec quant;
    uint64_t fingerprint;
    bool looks; /* checkpoint_look() */
};

/* Make tensor[] and by_name[] from list.  E_DATA: a name is there twice;
 * E_TEMP. */
MUST_CHECK int checkpoint_index(struct checkpoint *c, struct err *e);
/* Open shard i; closes the least recently used one that nobody reads if too many are
 * open.  It stays open until checkpoint_leave().  From any thread.  E_DATA: its size has
 * changed. */
MUST_CHECK int checkpoint_shard(struct checkpoint *c, size_t i, struct file **f,
                                struct err *e);
void checkpoint_leave(struct checkpoint *c, size_t i);
/* Read the bytes of an entry of the view, as they are stored.  From any thread. */
MUST_CHECK int checkpoint_entry(struct checkpoint *c, const struct ck_entry *en,
                                void *buf, struct err *e);

#endif
