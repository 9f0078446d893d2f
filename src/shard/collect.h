/* collect.h - what the input streams hold, before any payload is moved. */
#ifndef FORGE_COLLECT_H
#define FORGE_COLLECT_H

#include "common/io/stream.h"
#include "layout/runfacts.h"
#include "shard/provenance.h"

/* A tensor of the checkpoint to be, and where its payload lies. */
struct out_tensor {
    char *name;
    enum dtype dtype;
    int ndim;
    uint64_t dims[FRAME_MAX_DIMS];
    uint64_t bytes;
    int input;       /* index of the reader */
    uint64_t source; /* payload offset for stream_payload() */
    int shard;       /* 0, 1, ...: set by shard_plan() */
    uint64_t offset; /* in the data of the shard */
    uint64_t xxh3;   /* of its bytes; set when they are written */
};

/* Zero-initialise; collection_release() when done. */
struct collection {
    struct stream_reader **in;
    const char **path;
    int n_in;
    struct out_tensor *tensor;
    size_t n, cap;
    bool packed; /* a run note came: facts are valid */
    struct run_facts facts;
    uint64_t bytes; /* of all tensors */
    struct provenance about;
};

/* Read the frames of a regular file that holds FTS1, payloads left where they
 * are.  path must live as long as c.  E_DATA: a frame that has no place in a
 * checkpoint, or notes that disagree. */
MUST_CHECK int collect(struct collection *c, const char *path,
                       const struct stream_expect *expect, struct err *e);
/* Call once after the last: E_DATA when a name came twice.  Sorts by name as
 * people count: layers.2 before layers.10. */
MUST_CHECK int collect_finish(struct collection *c, struct err *e);
void collection_release(struct collection *c);

#endif
