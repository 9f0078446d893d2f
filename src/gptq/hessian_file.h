/* hessian_file.h - finds the Hessian of a module: in a file, or the last one
 * that came in the tool's own input, which goes first.
 *
 * The file's headers are read once, at opening; a payload is read from the file
 * each time it is asked for, into memory of the caller. */
#ifndef FORGE_HESSIAN_FILE_H
#define FORGE_HESSIAN_FILE_H

#include "common/io/stream.h"

struct hessian_file;

/* One hessian frame; owned by the hessian_file, valid until it closes; the
 * input's own entry: until the next hessian_file_take() or _look(). */
struct hessian_entry {
    float *payload;   /* of the input's own entry, until hessian_file_load() */
    char *name;       /* as the activation: model.layers.3.attn_in */
    char *modules;    /* that read this input, separated by '\n' */
    uint64_t offset;  /* of the payload in the file */
    uint64_t len;     /* bytes of the payload */
    uint64_t samples; /* tokens */
    uint64_t block;  /* size of the diagonal blocks; 0: packed lower triangle */
    uint64_t cols;   /* inputs; with blocks: rounded up to whole blocks */
    float *diagonal; /* [cols], after hessian_file_diagonal() or _look() */
    uint64_t looked; /* number of its elements that are set */
};

/* path NULL: no file.  expect_key: see stream_open(), or NULL.  E_NOINPUT;
 * E_DATA: no stream, no hessian frame in it, a frame whose shape is no
 * Hessian's, or a module with two Hessians; E_USAGE: not a regular file;
 * E_TEMP. */
MUST_CHECK int hessian_file_open(struct hessian_file **h, const char *path,
                                 const char *expect_key, struct err *e);
void hessian_file_close(struct hessian_file *h); /* NULL is allowed */
/* JSON of the file's HEAD, for stream_inherit(); NULL: no file. */
const char *hessian_file_head(const struct hessian_file *h);
/* Take a hessian frame of the input (copied): the Hessian of the modules that
 * it names, until the next one.  E_DATA: no Hessian's shape; E_TEMP. */
MUST_CHECK int hessian_file_take(struct hessian_file *h, const struct frame *f,
                                 struct err *e);
/* Its diagonal alone, which a loan says; E_DATA as below. */
MUST_CHECK int hessian_file_told(struct hessian_file *h, const struct frame *f,
                                 struct err *e);
/* The same for a caller that needs only the diagonal: a stream_look callback,
 * which gets the frame's payload piece by piece (bytes at..at+n-1, in order
 * from 0, whole floats) and keeps nothing else.  E_DATA: no Hessian's shape, or
 * a diagonal element is negative or not finite; E_TEMP. */
MUST_CHECK int hessian_file_look(void *hessian_file, const struct frame *f,
                                 uint64_t at, const void *piece, size_t n,
                                 struct err *e);
/* The entry of the input's own frame taken last. */
struct hessian_entry *hessian_file_taken(struct hessian_file *h);
/* Whether there is a file, or a frame has been taken. */
bool hessian_file_any(const struct hessian_file *h);
/* Whether there is a Hessian of this module. */
bool hessian_file_has(struct hessian_file *h, const char *module);
/* *entry = the Hessian of a module with `cols` inputs.  E_DATA: there is none,
 * or it has another number of inputs. */
MUST_CHECK int hessian_file_find(struct hessian_file *h, const char *module,
                                 uint64_t cols, struct hessian_entry **entry,
                                 struct err *e);
/* *data = the payload, its checksum verified, in new memory: free() it.  The
 * input's own entry can be loaded only once.  E_DATA: the file is damaged;
 * E_TEMP; E_IO. */
MUST_CHECK int hessian_file_load(struct hessian_file *h,
                                 const struct hessian_entry *entry,
                                 float **data, struct err *e);
/* The same for an entry of the file, into to[entry->len bytes]. */
MUST_CHECK int hessian_file_read(struct hessian_file *h,
                                 const struct hessian_entry *entry, float *to,
                                 struct err *e);
enum { HESSIAN_PRIOR = 2 }; /* forge quantize's k, below */
/* Shrink the loaded payload towards the identity: add the prior k trace(H) /
 * samples to every diagonal element that is not zero.  This is, up to the
 * division by samples, what k * cols further tokens with H's mean diagonal and
 * no correlations would add.  Returns the prior; 0, and nothing is done,
 * without samples. */
double hessian_file_add_prior(const struct hessian_entry *entry, double k,
                              float *data);
/* *diagonal = entry->diagonal, read at the first call.  E_DATA: an element is
 * negative or not finite, or as hessian_file_load(). */
MUST_CHECK int hessian_file_diagonal(struct hessian_file *h,
                                     struct hessian_entry *entry,
                                     const float **diagonal, struct err *e);

#endif
