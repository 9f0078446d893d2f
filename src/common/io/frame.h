/* frame.h - the binary format FTS1, for stream_read.c, stream_write.c and
 * tests; tools use stream.h.  Defined in forge-stream(5). */
#ifndef FORGE_FRAME_H
#define FORGE_FRAME_H

#include "common/io/stream.h"

/* Header of every frame, 64 bytes, little-endian.  It is followed by meta_len
 * bytes of metadata, pad_len zero bytes, payload_len bytes of payload. */
struct wire {
    char magic[4];   /* "FTS1" */
    uint16_t kind;   /* enum frame_kind */
    uint16_t flags;  /* 0 */
    uint64_t seq;    /* number of the frame in this stream, from 0 */
    uint64_t offset; /* of this frame from the start of the stream, bytes */
    uint32_t meta_len;
    uint32_t pad_len; /* zero bytes between meta and payload */
    uint64_t payload_len;
    uint64_t payload_hash; /* XXH3-64 of the payload */
    uint32_t meta_crc;     /* CRC-32C of the metadata */
    uint32_t reserved[2];  /* 0 */
    uint32_t crc;          /* CRC-32C of the 60 bytes above */
};
_Static_assert(sizeof(struct wire) == 64, "the header is 64 bytes");

/* Metadata of the END frame: totals that the reader compares with its own. */
struct wire_end {
    uint64_t frames;  /* number of frames before END, of all kinds */
    uint64_t tensors; /* number of TENSOR, REF and LOAN frames */
    uint64_t payload; /* sum of payload_len */
    uint64_t content; /* frame_content() over all frames that are not
                       * ancillary */
};
_Static_assert(sizeof(struct wire_end) == 32, "END says 32 bytes");

enum {
    WIRE_ALIGN = 64,  /* alignment of payloads in the stream */
    WIRE_PAGE = 4096, /* alignment of payloads of WIRE_BIG bytes or more, and
                       * of the end of the stream */
    WIRE_BIG = 1 << 20,
    WIRE_ERROR_MAX = 640,      /* bytes of an ERROR frame's message */
    WIRE_NOTE_MAX = 1 << 20,   /* bytes of a note's payload */
    WIRE_TENSORS_MAX = 1 << 24 /* tensors in one stream */
};
#define WIRE_DIM_MAX     ((uint64_t)1 << 40)
#define WIRE_PAYLOAD_MAX ((uint64_t)1 << 46)

/* Tags of the optional entries behind the name in a tensor's metadata, in
 * rising order.  Tags with bit 15 set are ancillary: readers skip those that
 * they do not know. */
enum tag {
    TAG_MODULES = 1,     /* text, one module a line */
    TAG_SAMPLES = 2,     /* u64 */
    TAG_SEQUENCE = 3,    /* u64 */
    TAG_BLOCK = 4,       /* u32 */
    TAG_GROUP = 5,       /* u32 */
    TAG_SCALE_DTYPE = 6, /* u16 */
    TAG_LAST = 7,        /* empty */
    TAG_REF_PATH = 8,    /* REF only: text */
    TAG_REF_OFFSET = 9,  /* REF only: u64 */
    TAG_REF_HASH = 10,   /* REF only: u64 */
    TAG_LOAN = 11,       /* LOAN only: handle, u64 offset, u32 lease, u32 1 */
    TAG_ANCILLARY = 0x8000
};

/* Number of padding bytes in front of a payload of n bytes, where the metadata
 * ends at offset `at`.  end: the frame is END, which is padded to WIRE_PAGE. */
uint32_t frame_padding(uint64_t at, uint64_t n, bool end);
/* Fill in magic and crc of a header whose other fields are complete. */
void frame_seal(struct wire *h);
/* Continue the content hash (0 to begin) with a header.  seq, offset and
 * padding are left out: ancillary frames change them. */
uint64_t frame_content(uint64_t hash, const struct wire *h);

/* Check f and write its metadata to buf [FRAME_META_MAX], *len bytes.  ref
 * NULL: a TENSOR frame, else REF.  E_DATA: invalid; E_BUG: f->len does not fit
 * the shape. */
MUST_CHECK int frame_encode(const struct frame *f, const struct frame_ref *ref,
                            uint8_t *buf, size_t *len, struct err *e);
/* The reverse of frame_encode(): parse and check metadata into *f (f->len from
 * the shape) and *ref (ref->path NULL for a TENSOR).  f->modules and ref->path
 * point into text [FRAME_META_MAX + 2].  1: done; 0: an ancillary frame of a
 * kind unknown to this version, to be skipped; E_DATA. */
MUST_CHECK int frame_decode(const uint8_t *meta, size_t len, unsigned kind,
                            struct frame *f, struct frame_ref *ref, char *text,
                            struct err *e);

/* Set of the (role, name, sequence) seen in a stream: open addressing over
 * 128-bit hashes.  Zero-initialise. */
struct name_set {
    uint64_t (*slot)[2];
    size_t count, cap;
};
/* E_DATA: f is in the set already; E_TEMP. */
MUST_CHECK int name_set_add(struct name_set *s, const struct frame *f,
                            struct err *e);
void name_set_release(struct name_set *s);

/* ---- a tensor in pieces, for stream_pass() ---- */

/* Whether HEAD has been written, so that stream_begin_tensor() may follow. */
bool stream_has_begun(const struct stream_writer *w);
/* Write frame f without its payload, whose XXH3-64 is `hash`; f->data is
 * ignored.  Exactly f->len bytes must follow by stream_piece(), before
 * anything else is written. */
MUST_CHECK int stream_begin_tensor(struct stream_writer *w,
                                   const struct frame *f, uint64_t hash,
                                   struct err *e);
/* Append n bytes of the payload begun. */
MUST_CHECK int stream_piece(struct stream_writer *w, const void *p, size_t n,
                            struct err *e);

#endif
