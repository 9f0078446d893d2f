/* shardindex.h - parses model.safetensors.index.json and
 * pytorch_model.bin.index.json: which tensor is in which file. */
#ifndef FORGE_SHARDINDEX_H
#define FORGE_SHARDINDEX_H

#include "common/base.h"
#include "common/io/json.h"

enum { SHARDINDEX_MAX = 100000000 }; /* bytes */

/* A row of the index's weight_map. */
struct shard_ref {
    const char *tensor;
    const char *file;
};

/* A parsed index; release by shard_index_release(). */
struct shard_index {
    struct shard_ref *ref; /* in the order of the file */
    size_t n_refs;
    const char **file; /* distinct names, sorted */
    size_t n_files;
    struct json_doc *doc; /* owns the strings */
};

/* suffix: of permitted file names.  what: prefix of messages.  E_DATA: not
 * strict JSON, no weight_map, or a file name that is not permitted
 * (modeldir_name_ok()); E_TEMP. */
MUST_CHECK int shard_index_parse(struct shard_index *x, const char *text,
                                 size_t len, const char *suffix,
                                 const char *what, struct err *e);
void shard_index_release(struct shard_index *x);

#endif
