/* stream.h - FTS1, the stream of named tensors that all tools speak.
 *
 * A stream is a HEAD frame, any frames, an END frame; whole streams may follow
 * one another (cat a b | tool).  forge-stream(5) gives the bytes.
 *
 * Who owns what: stream_next() lends everything in *f until the next call on
 * the same reader.  stream_write() copies nothing and keeps nothing.
 *
 * How a stream becomes complete: only stream_finish() writes END, and a file
 * gets its name only there.  A tool that dies leaves a pipe without END, which
 * every reader rejects with E_DATA, and a file that does not exist. */
#ifndef FORGE_STREAM_H
#define FORGE_STREAM_H

#include "common/base.h"
#include "common/math/dtype.h"

enum {
    FRAME_MAX_DIMS = 8,
    FRAME_NAME_MAX = 512,       /* bytes of UTF-8, no control characters */
    FRAME_META_MAX = 64 * 1024, /* of HEAD and note frames 1 MiB */
    FRAME_HEAD_MAX = 1024 * 1024
};

enum frame_kind {
    FRAME_HEAD = 1,
    FRAME_TENSOR = 2,
    FRAME_REF = 3,
    FRAME_ERROR = 4,
    FRAME_INDEX = 5,
    FRAME_END = 6,
    FRAME_ANCILLARY = 0x8000 /* bit 15 of kind: skip if unknown */
};

/* What a tensor is of the module or sequence that its name says.  Stored:
 * never renumber, only append.  Shapes in forge-stream(5). */
enum role {
    ROLE_NONE = 0,
    ROLE_TOKENS = 1,     /* I32 [n]            name: index of the sequence */
    ROLE_HIDDEN = 2,     /* BF16 or F32 [n, H] name: "model.layers.3" */
    ROLE_ACTIVATION = 3, /* BF16 or F32 [n, C] name: "model.layers.3.attn_in" */
    ROLE_ROUTING = 4,    /* I32 [n, K] (experts), F32 [n, K] (weights) */
    ROLE_HESSIAN = 5,    /* F32 [C(C+1)/2] lower triangle by rows, or
                            [G, g, g] (block > 0); name as the activation */
    ROLE_CROSS = 6,      /* F32 [R, C] */
    ROLE_WEIGHT = 7,     /* any float [O, I]   name: the module's path */
    ROLE_QMETA = 8,      /* QMETA4 [O, G]      name: the module's path */
    ROLE_CODES = 9,      /* U4 [O, I]          name: the module's path */
    ROLE_SCALES = 10,    /* F16 or BF16 [O, G] name: the module's path */
    ROLE_ZEROS = 11,     /* U4 [O, G]          name: the module's path */
    ROLE_TENSOR = 12,    /* any; name: the tensor's in the checkpoint */
    ROLE_HITMAP = 13,    /* F32 [E, k] */
    ROLE_MAP = 14,       /* I32 [E] */
    ROLE_NOTE = 15, /* U8 [n]: JSON text  name: the module's path or "run" */
    ROLE_COUNT
};

const char *role_name(enum role r);     /* "hessian"; "?" when unknown */
enum role role_parse(const char *name); /* ROLE_NONE when unknown */

/* One tensor.  Metadata beyond name and shape are optional: 0 or NULL means
 * absent, and stream_write() stores only what is present. */
struct frame {
    enum role role;
    enum dtype dtype;
    int ndim;
    uint64_t dims[FRAME_MAX_DIMS]; /* outermost first */
    char name[FRAME_NAME_MAX + 1];
    bool ancillary;         /* not part of the content: times, host facts */
    const char *modules;    /* paths of the linears that read this input,
                            separated by '\n', NUL-terminated */
    uint64_t samples;       /* tokens behind a hessian or activation */
    uint64_t sequence;      /* 1 + index of the calibration sequence */
    uint32_t block;         /* hessian: size g of the diagonal blocks */
    uint32_t group;         /* qmeta, codes, scales, zeros: inputs per scale */
    enum dtype scale_dtype; /* qmeta: what scales are stored as, F16 or BF16 */
    bool last;              /* no later frame of this stream has this name */
    bool lent;              /* written: data stays as it is until the reader
                               has taken it in, so that nothing is copied */
    bool passed;      /* read: it is in the output already, stream_pass() */
    const void *data; /* 64-byte aligned when read; 4096 from 1 MiB on */
    size_t len;
};

/* ---- reading ---- */

struct stream_reader;

/* What to check of a stream's HEAD; zero: nothing. */
struct stream_expect {
    const char *key;      /* --expect-key: another key is E_DATA */
    const char *ref_root; /* directory that REF frames may read files of;
                             NULL: a REF frame is E_DATA */
    bool piped; /* the file is what came through a pipe: an error that it
                   carries has been told */
};

/* path "-" or NULL: standard input.  Regular files are read through
 * common/io/file.h.  E_NOINPUT when it cannot be opened; E_USAGE when it is a
 * terminal. */
MUST_CHECK int stream_open(struct stream_reader **r, const char *path,
                           const struct stream_expect *expect, struct err *e);
/* The same of an open descriptor, which belongs to *r from here on, also on
 * error.  name: for messages, kept as it is. */
MUST_CHECK int stream_open_fd(struct stream_reader **r, int fd,
                              const char *name,
                              const struct stream_expect *expect,
                              struct err *e);
/* A tensor (role, name, sequence) may appear once in a stream, except notes
 * and ancillary frames; both ends check it (E_DATA).
 * 1: *f is the next tensor.  0: the input ended after a complete stream.
 * Negative: *e says why and where, "'<stdin>': frame 7: ...".  An ERROR frame
 * comes back as the code and message the upstream tool gave. */
MUST_CHECK int stream_next(struct stream_reader *r, struct frame *f,
                           struct err *e);
/* Wait until a part of the next frame, or the end, can be read: true; or until
 * the descriptor `other` can: false, if only that. */
bool stream_wait(struct stream_reader *r, int other);
/* As stream_next, but leaves the payload of regular files unread: f->data is
 * NULL, and stream_payload() can fetch it, now or later, at f's offset.
 * For pipes it reads as stream_next does. */
MUST_CHECK int stream_skim(struct stream_reader *r, struct frame *f,
                           uint64_t *payload_offset, struct err *e);
/* Read and check (XXH3) the payload skimmed at this offset into buf. */
MUST_CHECK int stream_payload(struct stream_reader *r, uint64_t payload_offset,
                              void *buf, size_t len, struct err *e);
void stream_close(struct stream_reader *r);
/* JSON text of the HEAD of the stream being read; NULL before the first. */
const char *stream_head(const struct stream_reader *r);
/* Bytes read so far, for progress; and the size of the input, 0 if unknown. */
uint64_t stream_bytes(const struct stream_reader *r, uint64_t *total);
/* Number of the frame last returned, counted from 0 at HEAD. */
uint64_t stream_frame_number(const struct stream_reader *r);

/* ---- writing ---- */

struct stream_writer;

struct stream_output {
    const char *path;  /* NULL or "-": standard output; E_USAGE if a terminal */
    const char *key;   /* --key: stored in HEAD; NULL: none */
    const char *facts; /* JSON members to add to what HEAD says of this
                          program, e.g. "\"model\":\"..\"", or NULL */
};

/* Opens the output (a file under a unique temporary name) and writes nothing
 * yet.  E_CREATE when that fails. */
MUST_CHECK int stream_create(struct stream_writer **w,
                             const struct stream_output *out, struct err *e);
/* Other facts, before the first write. */
MUST_CHECK int stream_facts(struct stream_writer *w, const char *facts,
                            struct err *e);
/* HEAD of an input goes into the history ("programs") of the output's HEAD.
 * Call it for every reader before the first write; equal entries are kept
 * once.  NULL head is allowed and ignored. */
MUST_CHECK int stream_inherit(struct stream_writer *w, const char *head,
                              struct err *e);
/* The options of this process that change what it writes, as a JSON array of
 * strings, e.g. ["--group=128","--symmetric"]; opt_parse() sets it.  "[]". */
extern const char *stream_args;
/* The first write puts HEAD in front: {"format":"FTS1","programs":[...,
 * {"tool":..,"version":..,"args":stream_args}],"key":..}. */
MUST_CHECK int stream_write(struct stream_writer *w, const struct frame *f,
                            struct err *e);
/* As stream_write, but the payload stays where it is: f->len bytes at `offset`
 * of the file `path`, relative to what the reader is told as ref_root; hash is
 * their XXH3-64.  f->data is not looked at. */
struct frame_ref {
    const char *path;
    uint64_t offset;
    uint64_t hash;
};
MUST_CHECK int stream_write_ref(struct stream_writer *w, const struct frame *f,
                                const struct frame_ref *ref, struct err *e);
/* Write out what is buffered, so that the next tool can have it now. */
MUST_CHECK int stream_flush(struct stream_writer *w, struct err *e);
/* Flush w whenever a read from r would have to wait: nobody at the other end
 * then waits for what this tool holds back.  Both belong to one thread; w must
 * not be finished before the last read.  A file is not waited for. */
void stream_tie(struct stream_reader *r, struct stream_writer *w);
/* Bytes at.. of a payload that passes, in order from 0 on.  What it fails with is
 * stream_next()'s error. */
typedef int stream_look(void *ctx, const struct frame *f, uint64_t at,
                        const void *piece, size_t n, struct err *e);
/* What a filter does not change need not wait for its last byte, nor be held: large
 * tensors of this role go from r to w while they arrive, before stream_next() says
 * them, with f->passed set and no data; they are not to be written again.  look (or
 * NULL) sees every piece.  Only when w has begun, and from a pipe.  A payload that
 * turns out wrong is wrong behind w, too, whose reader finds it by the same hash. */
void stream_pass(struct stream_reader *r, struct stream_writer *w,
                 enum role role, stream_look *look, void *ctx);
/* Write END, fsync, rename into place, fsync the directory.  Frees w, also on
 * error (after removing the temporary). */
MUST_CHECK int stream_finish(struct stream_writer *w, struct err *e);
/* Give up: on a pipe, tell the next tool why by an ERROR frame (best effort);
 * a file's temporary is removed.  Frees w.  NULL is allowed. */
void stream_abort(struct stream_writer *w, const struct err *why);

/* Name of module m out of f->modules: calls fn for each; stops at non-zero
 * and returns it. */
int frame_each_module(const struct frame *f,
                      int (*fn)(const char *module, void *arg), void *arg);
bool frame_has_module(const struct frame *f, const char *module);
/* f->dims[i] as "512x768" into buf. */
const char *frame_shape(const struct frame *f, char *buf, size_t cap);

#endif
