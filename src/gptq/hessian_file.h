/* hessian_file.h - Hessians, found by the module that needs one.
 *
 * Those of a file: it is skimmed once; payloads are read when asked for, one
 * at a time, so that memory holds one Hessian however many the file has.  And
 * the last one that came along in the tool's own input. */
#ifndef FORGE_HESSIAN_FILE_H
#define FORGE_HESSIAN_FILE_H

#include "common/io/stream.h"

struct hessian_file;

/* One hessian frame; owned by the hessian_file. */
struct hessian_entry {
    float *payload;   /* of the input's, as long as it is needed */
    char *name;       /* as the activation: model.layers.3.attn_in */
    char *modules;    /* separated by '\n' */
    uint64_t offset;  /* of the payload */
    uint64_t len;     /* bytes of the payload */
    uint64_t samples; /* tokens */
    uint64_t block;   /* 0: packed lower triangle */
    uint64_t cols;    /* inputs; with blocks: rounded up to whole blocks */
    float *diagonal;  /* [cols], once asked for */
    uint64_t looked;  /* elements of it that have come */
};

/* path NULL: no file.  E_NOINPUT; E_DATA: no stream, no hessian in it, a shape that is none, or a
 * module with two Hessians; E_USAGE: not a regular file. */
MUST_CHECK int hessian_file_open(struct hessian_file **h, const char *path,
                                 const char *expect_key, struct err *e);
void hessian_file_close(struct hessian_file *h); /* NULL is allowed */
/* JSON of the file's HEAD, for stream_inherit(). */
const char *hessian_file_head(const struct hessian_file *h);
/* A hessian frame of the input: the Hessian of the modules that it names, from
 * here to the next one.  E_DATA: it is none. */
MUST_CHECK int hessian_file_take(struct hessian_file *h, const struct frame *f,
                                 struct err *e);
/* Its diagonal alone, from bytes at..at+n-1 of its payload, which come in order from
 * 0 on, whole floats: a stream_look().  E_DATA: also where the diagonal is not finite
 * or negative. */
MUST_CHECK int hessian_file_look(void *hessian_file, const struct frame *f,
                                 uint64_t at, const void *piece, size_t n,
                                 struct err *e);
/* The entry of the frame that was taken last. */
struct hessian_entry *hessian_file_taken(struct hessian_file *h);
/* Whether there are Hessians at all. */
bool hessian_file_any(const struct hessian_file *h);
/* Whether there is one of this module. */
bool hessian_file_has(struct hessian_file *h, const char *module);
/* The Hessian of this module's `cols` inputs, in *entry.  E_DATA: there is
 * none, or it is for another number of inputs. */
MUST_CHECK int hessian_file_find(struct hessian_file *h, const char *module,
                                 uint64_t cols, struct hessian_entry **entry,
                                 struct err *e);
/* The payload, checked, in new memory: free() it.  That of the input's can be
 * had once. */
MUST_CHECK int hessian_file_load(struct hessian_file *h,
                                 const struct hessian_entry *entry,
                                 float **data, struct err *e);
/* The same of a file's entry into memory for entry->len bytes. */
MUST_CHECK int hessian_file_read(struct hessian_file *h,
                                 const struct hessian_entry *entry, float *to,
                                 struct err *e);
/* Add to the payload, as loaded, what k tokens more for each input would have
 * added, were they even and as large as its own: k trace(H) / samples, to the
 * diagonal of the inputs that ever were anything but zero.  Returns it; 0, and
 * nothing is done, without samples. */
double hessian_file_add_prior(const struct hessian_entry *entry, double k,
                              float *data);
/* entry->diagonal, read at the first call.  E_DATA: not finite or negative. */
MUST_CHECK int hessian_file_diagonal(struct hessian_file *h,
                                     struct hessian_entry *entry,
                                     const float **diagonal, struct err *e);

#endif
