/* stream_reader.h - struct stream_reader, shared by stream_read.c and
 * stream_payload.c. */
#ifndef FORGE_STREAM_READER_H
#define FORGE_STREAM_READER_H

#include "common/io/frame.h"
#include "common/io/hash.h"
#include "common/io/stream.h"
#include "common/io/stream_source.h"

/* A payload that stream_skim() left unread, for stream_payload(). */
struct skimmed {
    uint64_t at; /* offset in the input; of a REF, the end of its frame */
    uint64_t len, hash, ref_offset; /* ref_offset: in the file ref_path */
    char *ref_path;                 /* NULL: the payload is in this input */
};

/* State of a reader. */
struct stream_reader {
    struct source in;
    char *key, *root; /* copies of stream_expect's key and ref_root */
    char *head;
    uint8_t *meta; /* metadata of the current frame */
    size_t meta_cap;
    char *text;       /* texts of the current frame: modules, REF path */
    uint8_t *payload; /* of the current frame, lent to the caller */
    size_t payload_cap;
    XXH3_state_t *hash;
    struct name_set names; /* tensors of this stream */
    struct wire h;         /* header of the current frame */
    struct wire_end seen;  /* totals so far, compared with END; frames is the
                           * next seq */
    uint64_t start;        /* offset of this stream in the input */
    uint64_t last_frame;
    bool open, complete; /* open: between HEAD and END; complete: an END was
                          * read */
    bool loans;          /* see struct stream_expect */
    stream_unwanted *unwanted; /* stream_leave_out(); NULL: none */
    const void *unwanted_ctx;
    stream_leave *later; /* stream_later(); NULL: none */
    void *later_ctx;
    bool told;  /* the error is an ERROR frame's or the output's:
                          * keep its text */
    int failed; /* code of the first error, returned from then on */
    struct err why;
    struct skimmed *skim;
    size_t n_skim, skim_cap;
    struct stream_writer *tied;    /* stream_tie(); NULL: none */
    struct stream_writer *pass_to; /* stream_pass(): its writer; NULL: none */
    enum role pass_role;
    stream_look *look; /* stream_pass(): its callback, or NULL */
    void *look_ctx;
};

/* *dst = malloced copy of s, or NULL if s is NULL.  E_TEMP. */
MUST_CHECK int stream_copy_text(char **dst, const char *s, struct err *e);
/* Make r->payload at least n bytes long; its first `keep` bytes are kept.
 * E_TEMP. */
MUST_CHECK int stream_reserve(struct stream_reader *r, size_t n, size_t keep,
                              struct err *e);
/* Read the n payload bytes of a REF frame from its file into buf (NULL:
 * r->payload) and check their hash. */
MUST_CHECK int stream_read_ref(struct stream_reader *r,
                               const struct frame_ref *ref, void *buf, size_t n,
                               struct err *e);
/* Skip the payload of f and record where it is. */
MUST_CHECK int stream_skimmed(struct stream_reader *r, const struct frame *f,
                              const struct frame_ref *ref, struct err *e);

#endif
