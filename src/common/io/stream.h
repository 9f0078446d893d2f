/* stream.h - FTS1, the stream of named tensors that the tools exchange.
 *
 * A stream is a HEAD frame, any number of frames, an END frame; complete
 * streams may follow one another in one input (cat a b | tool).  Bytes:
 * forge-stream(5).
 *
 * Ownership: pointers in the frame that stream_next() returns are valid until
 * the next call on the same reader.  stream_write() keeps no pointer of its
 * arguments after it returns, except to the data of a `lent` frame.
 *
 * Completeness: only stream_finish() writes END, and only then an output file
 * gets its name.  A tool that dies leaves a pipe without END, which every
 * reader rejects with E_DATA, or no file. */
#ifndef FORGE_STREAM_H
#define FORGE_STREAM_H

#include "common/base.h"
#include "common/math/dtype.h"

enum {
    FRAME_MAX_DIMS = 8,
    FRAME_NAME_MAX = 512,        /* bytes of UTF-8, no control characters */
    FRAME_META_MAX = 64 * 1024,  /* bytes of metadata of a tensor */
    FRAME_HEAD_MAX = 1024 * 1024 /* bytes of a HEAD's JSON */
};

/* Kinds of frames, as stored. */
enum frame_kind {
    FRAME_HEAD = 1,
    FRAME_TENSOR = 2,
    FRAME_REF = 3,
    FRAME_ERROR = 4,
    FRAME_INDEX = 5,
    FRAME_END = 6,
    FRAME_LOAN = 7,
    FRAME_ANCILLARY = 0x8000 /* bit: a reader that does not know the kind
                              * skips it */
};

/* What a tensor holds, for the module or sequence in its name.  Letters: n
 * tokens, H hidden size, C inputs, O or R output rows, I inputs, G groups per
 * row, g block size, E experts, K experts per token.  The numbers are stored:
 * never renumber, only append.  Details in forge-stream(5). */
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
    ROLE_CODES = 9,      /* U4 or U8 [O, I]    name: the module's path */
    ROLE_SCALES = 10,    /* F16 or BF16 [O, G] name: the module's path */
    ROLE_ZEROS = 11,     /* U4 or U8 [O, G]    name: the module's path */
    ROLE_TENSOR = 12,    /* any; name: the tensor's in the checkpoint */
    ROLE_HITMAP = 13,    /* F32 [E, k] */
    ROLE_MAP = 14,       /* I32 [E] */
    ROLE_NOTE = 15,  /* U8 [n]: JSON text  name: the module's path or "run" */
    ROLE_INDEX = 16, /* I32 [I]: each input's group  name: the module's path */
    ROLE_COUNT
};

const char *role_name(enum role r);     /* "hessian"; "?" if unknown */
enum role role_parse(const char *name); /* ROLE_NONE if unknown */

/* A payload in device memory of another process, which none of the stream's
 * bytes contain.  A LOAN frame goes only through pipes, to a reader that set
 * stream_expect.loans (device/ledger.h). */
enum { LOAN_HANDLE = 64 };
enum lent { LENT_DEVICE = 1, LENT_HOST };
struct loan {
    uint8_t handle[LOAN_HANDLE]; /* of a block of memory, as the device makes
                                  * it */
    uint64_t offset;             /* of the payload in the block, bytes; of a
                                  * host's in the ledger */
    uint32_t lease;              /* device/ledger.h: to be returned when
                                  * read; 0: the lender is told in another
                                  * way (sync.h) */
    uint32_t lent; /* enum lent; 0: the payload is in the stream */
};

/* One tensor.  Fields below `name` are optional: 0, false or NULL means
 * absent, and is not stored. */
struct frame {
    enum role role;
    enum dtype dtype;
    int ndim;
    uint64_t dims[FRAME_MAX_DIMS]; /* outermost first */
    char name[FRAME_NAME_MAX + 1];
    bool ancillary; /* not part of the content hash: times, facts of the host */
    const char *modules;    /* activation, hessian: paths of the linears that
                             * read this input, separated by '\n',
                             * NUL-terminated */
    uint64_t samples;       /* hessian, activation: number of tokens */
    uint64_t sequence;      /* 1 + index of the calibration sequence */
    uint32_t block;         /* hessian: size g of its diagonal blocks; 0: one
                             * triangle */
    uint32_t group;         /* qmeta, codes, scales, zeros: inputs per scale */
    enum dtype scale_dtype; /* qmeta: type of the scales when stored, F16 or
                             * BF16 */
    bool last;              /* no later frame of this stream has this name */
    bool lent;              /* writing: data stays unchanged until the reader
                             * of the pipe has consumed it (sync.h tells
                             * when), so that it is not copied */
    bool passed; /* reading: its payload is gone already, see stream_pass() and
                  * stream_later() */
    const void *data; /* the payload; when read, aligned to 64, from 1 MiB on
                       * to 4096 */
    size_t len;       /* bytes of the payload */
    struct loan loan; /* where the payload is, if loan.lent */
    size_t about; /* loan: bytes at data, sent with the frame to describe it */
};

/* Number of bytes at f->data. */
static inline size_t frame_bytes(const struct frame *f)
{
    return f->loan.lent ? f->about : f->len;
}

/* ---- reading ---- */

struct stream_reader;

/* What stream_open() requires of the input; zero-initialised: nothing. */
struct stream_expect {
    const char *key; /* --expect-key: E_DATA if HEAD has another key or none */
    const char *ref_root; /* directory of the files that REF frames name;
                           * NULL: a REF frame is E_DATA */
    bool loans; /* accept LOAN frames, from a pipe; else they are E_DATA */
};

/* path NULL or "-": standard input.  expect may be NULL.  E_NOINPUT: cannot be
 * opened; E_USAGE: it is a terminal; E_TEMP. */
MUST_CHECK int stream_open(struct stream_reader **r, const char *path,
                           const struct stream_expect *expect, struct err *e);
/* The same for an open descriptor, which belongs to *r from the call on, even
 * if it fails.  name: for messages, kept as a pointer. */
MUST_CHECK int stream_open_fd(struct stream_reader **r, int fd,
                              const char *name,
                              const struct stream_expect *expect,
                              struct err *e);
/* Read and check the next tensor.  1: *f is set; 0: the input ended behind a
 * complete stream; negative: *e says where and why, "'<stdin>': frame 7: ...".
 *
 * E_DATA: checksums, lengths or END do not fit, or a (role, name, sequence)
 * appears twice (notes and ancillary frames may).  An ERROR frame returns the
 * code and message of the tool upstream that wrote it.  After an error every
 * call returns it again. */
MUST_CHECK int stream_next(struct stream_reader *r, struct frame *f,
                           struct err *e);
/* Block until the input has data, or has ended: true; or until only descriptor
 * `other` is readable: false. */
bool stream_wait(struct stream_reader *r, int other);
/* As stream_next(), but for a regular file the payload is not read: f->data is
 * NULL, and stream_payload() can read it later, given *payload_offset.  For a
 * pipe it is stream_next(). */
MUST_CHECK int stream_skim(struct stream_reader *r, struct frame *f,
                           uint64_t *payload_offset, struct err *e);
/* Read the payload that was skimmed at this offset into buf[len] and check its
 * XXH3-64.  E_DATA; E_IO; E_BUG: none of this offset and length was skimmed. */
MUST_CHECK int stream_payload(struct stream_reader *r, uint64_t payload_offset,
                              void *buf, size_t len, struct err *e);
/* Of a regular file, do not read the payloads of the frames for which this is
 * true: stream_next() returns them with f->data NULL. */
typedef bool stream_unwanted(const void *ctx, const struct frame *f);
void stream_leave_out(struct stream_reader *r, stream_unwanted *unwanted,
                      const void *ctx);
/* Of a regular file, leave payloads to be read in pieces: `later` is called with each
 * frame, and where its payload is.  1: stream_next() returns it with f->passed set and
 * f->data NULL; 0: as it does otherwise; its error becomes stream_next()'s. */
typedef int stream_leave(void *ctx, const struct frame *f,
                         uint64_t payload_offset, struct err *e);
void stream_later(struct stream_reader *r, stream_leave *later, void *ctx);
/* Read bytes [at, at+n) of a payload that was left or skimmed; any number of threads
 * may, while no other function is called with r but stream_payload_check().  E_IO,
 * E_DATA: the file is shorter, or the payload is in another one (REF). */
MUST_CHECK int stream_payload_piece(struct stream_reader *r,
                                    uint64_t payload_offset, uint64_t at,
                                    void *buf, size_t n, struct err *e);
/* E_DATA: the payload's XXH3-64 is not `hash`. */
MUST_CHECK int stream_payload_check(struct stream_reader *r,
                                    uint64_t payload_offset, uint64_t hash,
                                    struct err *e);
/* Behind stream_next(), which returned a payload of n bytes: take the reader's memory
 * with this payload, of *cap bytes, for *p, memory of *cap bytes by mem_pages(), which
 * is the reader's from then on.  False: a large part of it is not used; nothing is
 * exchanged. */
bool stream_exchange(struct stream_reader *r, size_t n, void **p, size_t *cap);
void stream_close(struct stream_reader *r);
/* JSON text of HEAD of the current stream; NULL before the first. */
const char *stream_head(const struct stream_reader *r);
/* Bytes of the input consumed so far, for progress.  *total (or NULL): size of
 * the input, 0 if unknown. */
uint64_t stream_bytes(const struct stream_reader *r, uint64_t *total);
/* Number of the frame returned last; HEAD is 0. */
uint64_t stream_frame_number(const struct stream_reader *r);

/* ---- writing ---- */

struct stream_writer;

/* Arguments of stream_create(). */
struct stream_output {
    const char *path;  /* NULL or "-": standard output; E_USAGE if a terminal */
    const char *key;   /* --key: stored in HEAD; NULL: none */
    const char *facts; /* members for this program's entry in HEAD, as JSON
                        * text: "\"model\":\"..\""; NULL: none */
};

/* Open the output; nothing is written yet.  A file is published at
 * stream_finish() (file.h).  E_CREATE; E_USAGE: a terminal; E_TEMP. */
MUST_CHECK int stream_create(struct stream_writer **w,
                             const struct stream_output *out, struct err *e);
/* Replace the facts of struct stream_output; before the first write. */
MUST_CHECK int stream_facts(struct stream_writer *w, const char *facts,
                            struct err *e);
/* Add the programs in the HEAD of an input to those in the output's HEAD, each
 * distinct entry once.  Call it for every input before the first write; head
 * may be NULL. */
MUST_CHECK int stream_inherit(struct stream_writer *w, const char *head,
                              struct err *e);
/* The options of this process that affect its output, as a JSON array of
 * strings: ["--group=128","--symmetric"].  Set by opt_parse(); "[]" before. */
extern const char *stream_args;
/* Append a frame with its payload f->data[f->len].  The first write is
 * preceded by HEAD: {"format":"FTS1","programs":[..., {"tool":..,"version":..,
 * "args":stream_args}],"key":..}.  E_DATA: invalid or already written name;
 * E_IO; E_BUG: a write after an error, or f->len does not fit the shape. */
MUST_CHECK int stream_write(struct stream_writer *w, const struct frame *f,
                            struct err *e);
/* Whether the output is a pipe; writing a loan elsewhere is E_USAGE. */
bool stream_is_pipe(const struct stream_writer *w);
/* A payload that stays in a file: f->len bytes at `offset` of the file `path`,
 * relative to the reader's ref_root. */
struct frame_ref {
    const char *path;
    uint64_t offset; /* bytes */
    uint64_t hash;   /* XXH3-64 of the payload */
};
/* As stream_write(), but writes a REF frame; f->data is ignored. */
MUST_CHECK int stream_write_ref(struct stream_writer *w, const struct frame *f,
                                const struct frame_ref *ref, struct err *e);
/* Write out what is buffered, so that the next tool can read it. */
MUST_CHECK int stream_flush(struct stream_writer *w, struct err *e);
/* Flush w whenever a read from r is about to block, so that no tool waits for
 * frames that this one still buffers.  r and w must be used by one thread, and
 * w must not be finished before the last read.  Regular files never block. */
void stream_tie(struct stream_reader *r, struct stream_writer *w);
/* Called whenever a read from a pipe is about to block, in place of stream_tie().  Its
 * error becomes stream_next()'s. */
typedef int stream_wait_fn(void *ctx, struct err *e);
void stream_on_wait(struct stream_reader *r, stream_wait_fn *fn, void *ctx);
/* Called for each piece of a passed payload, in order: bytes [at, at+n) of f.
 * Its error becomes stream_next()'s. */
typedef int stream_look(void *ctx, const struct frame *f, uint64_t at,
                        const void *piece, size_t n, struct err *e);
/* Forward large tensors (1 MiB or more) of this role from r to w while they
 * arrive, piece by piece, without holding them.  stream_next() then returns
 * them with f->passed set and f->data NULL; the caller must not write them
 * again.  look (or NULL) sees every piece.  Applies when r is a pipe and w has
 * begun; w NULL: only look gets them.  If the checksum turns out wrong,
 * stream_next() fails, and so does the next reader, by the same hash. */
void stream_pass(struct stream_reader *r, struct stream_writer *w,
                 enum role role, stream_look *look, void *ctx);
/* Of a file that is being written: it once more, for reading, to be closed with close();
 * -1: none.  And the bytes from its beginning that are there. */
int stream_reader_of(const struct stream_writer *w);
uint64_t stream_there(const struct stream_writer *w);
/* Write END; a file is fsynced, renamed to its name, and its directory
 * fsynced.  Frees w, also on error, after which no file is left. */
MUST_CHECK int stream_finish(struct stream_writer *w, struct err *e);
/* Give up: a pipe gets an ERROR frame with `why` (best effort), a file is
 * removed.  Frees w.  NULL is allowed. */
void stream_abort(struct stream_writer *w, const struct err *why);
/* The same for a tool that fails before it has created its output: if standard
 * output is a pipe, and no writer was ever created on it, it gets HEAD and an
 * ERROR frame. */
void stream_refuse(const struct err *why);

/* Call fn for each path in f->modules; stops at a non-zero result and returns
 * it. */
int frame_each_module(const struct frame *f,
                      int (*fn)(const char *module, void *arg), void *arg);
/* Whether f->modules contains this path. */
bool frame_has_module(const struct frame *f, const char *module);
/* f->dims as text, "512x768", in buf[cap]; returns buf. */
const char *frame_shape(const struct frame *f, char *buf, size_t cap);

#endif
