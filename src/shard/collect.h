/* collect.h - lists the tensors of the input streams, and reads their notes.
 * Payloads of files, and of the source's own tensors, are read later, those of a pipe go
 * to a file (spool.h). */
#ifndef FORGE_COLLECT_H
#define FORGE_COLLECT_H

#include "checkpoint/weights.h"
#include "layout/runfacts.h"
#include "shard/provenance.h"
#include "shard/spool.h"

/* A tensor of the checkpoint to be written, and the place of its payload. */
struct out_tensor {
    char *name;
    char *
        stored; /* in the files, which for a multimodal model is another; NULL until
                     shard_plan_take() */
    int64_t layer; /* of a part of a quantized linear; -1: another tensor */
    enum dtype dtype;
    int ndim;
    uint64_t dims[FRAME_MAX_DIMS];
    uint64_t bytes;
    int input;       /* index into collection.in; -1: the spool */
    uint64_t source; /* payload offset for stream_payload(); in the spool */
    const struct ck_tensor *from; /* in the source; NULL: it came in a stream */
    uint64_t offset; /* in the shard's data; set by shard_plan_take() */
    uint64_t xxh3; /* XXH3-64 of its bytes; of a file's when they are written */
};

/* Zero-initialise; collection_release() when done. */
struct collection {
    struct stream_reader **in; /* [n_in] */
    int n_in;
    struct spool *spool;       /* of a pipe; NULL: none */
    struct checkpoint *source; /* what out_tensor.from is in; NULL: none is */
    struct out_tensor *tensor; /* [n] that are not yet in a shard_plan */
    size_t n, cap;
    bool packed; /* there was a run note: facts are valid */
    struct run_facts facts;
    uint64_t bytes; /* of all tensors that came */
    struct provenance about;
};

/* Add the frames of a regular file that holds a stream (forge-stream(5)); reads
 * headers and notes, not the tensors.  path must outlive c.  E_DATA: a frame
 * that has no place in a checkpoint, or notes that contradict each other;
 * E_NOINPUT; E_IO; E_TEMP. */
MUST_CHECK int collect(struct collection *c, const char *path,
                       const struct stream_expect *expect, struct err *e);
/* Add the tensors that p selects, no 4-bit ones, which are read from p's checkpoint: it
 * must outlive c.  E_DATA: a name is too long; E_CONFIG: a 4-bit one; E_TEMP. */
MUST_CHECK int collect_others(struct collection *c,
                              const struct weights_plan *p, struct err *e);
/* What collect_pipe() calls; an error ends the reading. */
struct collect_calls {
    int (*taken)(void *ctx, struct err *e); /* behind each tensor, the last of
                                             * c->tensor */
    int (*waiting)(void *ctx,
                   struct err *e); /* now and then while none comes */
    void *ctx;
};

/* Add the frames of standard input, a pipe, while they come; the spool lies in
 * directory `dir`.  E_USAGE: a terminal; E_CREATE; E_TEMP also: a signal
 * (outdir.h); otherwise as collect(). */
MUST_CHECK int collect_pipe(struct collection *c, const char *dir,
                            const struct stream_expect *expect,
                            const struct collect_calls *calls, struct err *e);
/* Whether standard input is to be read by collect_pipe(), not by collect(). */
bool collect_is_pipe(void);
/* A tensor of the source that is not read in pieces, since it does not lie in its file as
 * it is.  Zero-initialise; free(data). */
struct held {
    const struct ck_tensor *t; /* or NULL */
    void *data;
    size_t cap;
};
/* Read bytes [at, at+n) of a tensor; any number of threads may, each with its own h.
 * E_IO, E_DATA, E_TEMP. */
MUST_CHECK int collect_read(const struct collection *c,
                            const struct out_tensor *t, uint64_t at, void *buf,
                            size_t n, struct held *h, struct err *e);
/* All of a tensor was read, and has this XXH3-64: set t->xxh3.  E_DATA: it should
 * have another. */
MUST_CHECK int collect_check(const struct collection *c, struct out_tensor *t,
                             uint64_t hash, struct err *e);
void collection_release(struct collection *c);

#endif
