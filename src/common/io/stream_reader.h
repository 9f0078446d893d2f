/* stream_reader.h - what stream_read.c and stream_payload.c share: the inside of
 * stream.h's reader. */
#ifndef FORGE_STREAM_READER_H
#define FORGE_STREAM_READER_H

#include "common/io/frame.h"
#include "common/io/hash.h"
#include "common/io/stream.h"
#include "common/io/stream_source.h"

/* A payload that was passed over and may be asked for later. */
struct skimmed {
    uint64_t at; /* absolute; of a REF, where its frame ends */
    uint64_t len, hash, ref_offset;
    char *ref_path; /* NULL: in this input */
};

struct stream_reader {
    struct source in;
    char *key, *root; /* of struct stream_expect */
    char *head;
    uint8_t *meta; /* FRAME_META_MAX, or more for a HEAD */
    size_t meta_cap;
    char *text; /* modules and path of the frame */
    uint8_t *payload;
    size_t payload_cap;
    XXH3_state_t *hash;
    struct name_set names;
    struct wire h;        /* the frame being read */
    struct wire_end seen; /* what END must say; frames is the next seq */
    uint64_t start;       /* of this stream in the input */
    uint64_t last_frame;
    bool open, complete; /* inside a stream; after one */
    bool piped;          /* see stream_expect */
    bool told;           /* by an ERROR frame, or it is the output's error */
    int failed;          /* code of the first error, which stays */
    struct err why;
    struct skimmed *skim;
    size_t n_skim, skim_cap;
    struct stream_writer *tied;   /* NULL: none */
    struct stream_writer *onward; /* tensors of pass_role; NULL: none */
    enum role pass_role;
    stream_look *look; /* of what passes; or NULL */
    void *look_ctx;
};

/* *dst = s, or NULL. */
MUST_CHECK int stream_copy_text(char **dst, const char *s, struct err *e);
/* Room for n bytes in r->payload, the first `keep` of which are kept. */
MUST_CHECK int stream_reserve(struct stream_reader *r, size_t n, size_t keep,
                              struct err *e);
/* The payload of a REF frame, n bytes, checked, to buf or (NULL) r->payload. */
MUST_CHECK int stream_read_ref(struct stream_reader *r,
                               const struct frame_ref *ref, void *buf, size_t n,
                               struct err *e);
/* Pass over the payload of f, and remember where it is. */
MUST_CHECK int stream_skimmed(struct stream_reader *r, const struct frame *f,
                              const struct frame_ref *ref, struct err *e);

#endif
