/* frame.h - the bytes of FTS1, for stream_read.c, stream_write.c and tests.
 * Tools use stream.h.  forge-stream(5) describes what is here. */
#ifndef FORGE_FRAME_H
#define FORGE_FRAME_H

#include "common/io/stream.h"

/* The 64 bytes that every frame starts with. */
struct wire {
    char magic[4]; /* "FTS1" */
    uint16_t kind;
    uint16_t flags;  /* 0 */
    uint64_t seq;    /* 0, 1, 2, ... in this stream */
    uint64_t offset; /* of this frame in this stream */
    uint32_t meta_len;
    uint32_t pad_len; /* zero bytes between meta and payload */
    uint64_t payload_len;
    uint64_t payload_hash; /* XXH3-64 */
    uint32_t meta_crc;     /* CRC-32C */
    uint32_t reserved[2];  /* 0 */
    uint32_t crc;          /* CRC-32C of the 60 bytes before */
};
_Static_assert(sizeof(struct wire) == 64, "the header is 64 bytes");

/* Meta of END. */
struct wire_end {
    uint64_t frames;  /* before END, HEAD and ancillary ones included */
    uint64_t tensors; /* TENSOR and REF frames */
    uint64_t payload; /* bytes of all payloads */
    uint64_t content; /* frame_content() over all frames that are content */
};
_Static_assert(sizeof(struct wire_end) == 32, "END says 32 bytes");

enum {
    WIRE_ALIGN = 64,  /* of payloads */
    WIRE_PAGE = 4096, /* of payloads from WIRE_BIG on, and of END */
    WIRE_BIG = 1 << 20,
    WIRE_ERROR_MAX = 640,      /* bytes of an ERROR's message */
    WIRE_NOTE_MAX = 1 << 20,   /* bytes of a note */
    WIRE_TENSORS_MAX = 1 << 24 /* in one stream */
};
#define WIRE_DIM_MAX     ((uint64_t)1 << 40)
#define WIRE_PAYLOAD_MAX ((uint64_t)1 << 46)

/* Tags of the entries that may follow the name in the meta of a tensor, in
 * rising order.  Bit 15 set: ancillary, skipped when unknown. */
enum tag {
    TAG_MODULES = 1,     /* text, lines */
    TAG_SAMPLES = 2,     /* u64 */
    TAG_SEQUENCE = 3,    /* u64 */
    TAG_BLOCK = 4,       /* u32 */
    TAG_GROUP = 5,       /* u32 */
    TAG_SCALE_DTYPE = 6, /* u16 */
    TAG_LAST = 7,        /* empty */
    TAG_REF_PATH = 8,    /* REF only: text */
    TAG_REF_OFFSET = 9,  /* REF only: u64 */
    TAG_REF_HASH = 10,   /* REF only: u64 */
    TAG_ANCILLARY = 0x8000
};

/* Zero bytes before a payload of n bytes whose meta ends at `at`; for END
 * (end true) up to the next page. */
uint32_t frame_padding(uint64_t at, uint64_t n, bool end);
void frame_seal(struct wire *h); /* fill in the magic and the CRC */
/* Fold a header into the hash of the content (0 to begin).  Place in the
 * stream and padding do not count: ancillary frames change them. */
uint64_t frame_content(uint64_t hash, const struct wire *h);

/* Check what a tool wants to write and put it into buf (FRAME_META_MAX
 * bytes).  ref NULL: a TENSOR.  E_DATA, or E_BUG when sizes disagree. */
MUST_CHECK int frame_encode(const struct frame *f, const struct frame_ref *ref,
                            uint8_t *buf, size_t *len, struct err *e);
/* The reverse; f->len is what the shape says.  text (FRAME_META_MAX + 2 bytes)
 * keeps the modules and the path.  ref->path is NULL for a TENSOR.
 * 1; 0: an ancillary frame that is newer than this tool, to be skipped. */
MUST_CHECK int frame_decode(const uint8_t *meta, size_t len, unsigned kind,
                            struct frame *f, struct frame_ref *ref, char *text,
                            struct err *e);

/* The names seen in a stream, as 128-bit hashes. */
struct name_set {
    uint64_t (*slot)[2];
    size_t count, cap;
};
/* E_DATA when f is in the set, E_TEMP. */
MUST_CHECK int name_set_add(struct name_set *s, const struct frame *f,
                            struct err *e);
void name_set_release(struct name_set *s);

/* ---- a tensor in pieces, for stream_pass() ---- */

/* Whether the HEAD is out, so that a tensor may follow. */
bool stream_has_begun(const struct stream_writer *w);
/* f as stream_write() would, without its payload, whose hash is given: f->len
 * bytes are due by stream_piece().  Until they have come, the output is broken. */
MUST_CHECK int stream_begin_tensor(struct stream_writer *w,
                                   const struct frame *f, uint64_t hash,
                                   struct err *e);
MUST_CHECK int stream_piece(struct stream_writer *w, const void *p, size_t n,
                            struct err *e);

#endif
