/* collect.h - lists the tensors of the input streams, and reads their notes;
 * payloads are read later. */
#ifndef FORGE_COLLECT_H
#define FORGE_COLLECT_H

#include "common/io/stream.h"
#include "layout/runfacts.h"
#include "shard/provenance.h"

/* A tensor of the checkpoint to be written, and the place of its payload. */
struct out_tensor {
    char *name;
    enum dtype dtype;
    int ndim;
    uint64_t dims[FRAME_MAX_DIMS];
    uint64_t bytes;
    int input;       /* index into collection.in */
    uint64_t source; /* payload offset for stream_payload() */
    int shard;       /* 0, 1, ...: set by shard_plan() */
    uint64_t offset; /* in the shard's data; set by shard_plan() */
    uint64_t xxh3;   /* XXH3-64 of its bytes; set when they are written */
};

/* Zero-initialise; collection_release() when done. */
struct collection {
    struct stream_reader **in; /* [n_in] */
    int n_in;
    struct out_tensor *tensor; /* [n] */
    size_t n, cap;
    bool packed; /* there was a run note: facts are valid */
    struct run_facts facts;
    uint64_t bytes; /* of all tensors */
    struct provenance about;
};

/* Add the frames of a regular file that holds a stream (forge-stream(5)); reads
 * headers and notes, not the tensors.  path must outlive c.  E_DATA: a frame
 * that has no place in a checkpoint, or notes that contradict each other;
 * E_NOINPUT; E_IO; E_TEMP. */
MUST_CHECK int collect(struct collection *c, const char *path,
                       const struct stream_expect *expect, struct err *e);
/* Call once after the last file: sorts the tensors in natural order of names
 * (layers.2 before layers.10).  E_DATA: a name came twice. */
MUST_CHECK int collect_finish(struct collection *c, struct err *e);
void collection_release(struct collection *c);

#endif
