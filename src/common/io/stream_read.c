/* stream_read.c - see stream.h: reading.
 *
 * No field of a header is used before its checksum has been verified, and a
 * payload's declared length allocates at most FIRST_CHUNK in advance: memory
 * grows with the bytes that arrive. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/io/crc32c.h"
#include "common/io/json.h"
#include "common/io/stream_reader.h"
#include "common/io/stream_ref.h"
#include "common/io/utf8.h"

enum {
    FIRST_CHUNK = 512 << 20,
    HASH_CHUNK = 256 << 10 /* bytes hashed while they are in the cache */
};

static int bad(struct err *e, const char *why)
{
    return err_set(e, E_DATA, "%s", why);
}

/* Set up everything but the source, which is open. */
static int prepare(struct stream_reader *r, const struct stream_expect *expect,
                   struct err *e)
{
    r->meta_cap = FRAME_META_MAX;
    r->loans = expect && expect->loans;
    if (stream_copy_text(&r->key, expect ? expect->key : NULL, e) < 0 ||
        stream_copy_text(&r->root, expect ? expect->ref_root : NULL, e) < 0 ||
        !(r->meta = mem_alloc(r->meta_cap, "stream", e)) ||
        !(r->text = mem_alloc(FRAME_META_MAX + 2, "stream", e)))
        return e->code;
    r->hash = XXH3_createState();
    return r->hash ? 0 : err_set(e, E_TEMP, "stream: cannot allocate a hash");
}

int stream_open(struct stream_reader **out, const char *path,
                const struct stream_expect *expect, struct err *e)
{
    struct stream_reader *r = mem_zero(1, sizeof(*r), "stream", e);

    if (!r)
        return e->code;
    if (source_open(&r->in, path, e) < 0 || prepare(r, expect, e) < 0) {
        stream_close(r);
        return e->code;
    }
    *out = r;
    return 0;
}

int stream_open_fd(struct stream_reader **out, int fd, const char *name,
                   const struct stream_expect *expect, struct err *e)
{
    struct stream_reader *r = mem_zero(1, sizeof(*r), "stream", e);

    if (!r) {
        close(fd);
        return e->code;
    }
    if (source_from_fd(&r->in, fd, name, e) < 0 || prepare(r, expect, e) < 0) {
        stream_close(r);
        return e->code;
    }
    *out = r;
    return 0;
}

void stream_close(struct stream_reader *r)
{
    if (!r)
        return;
    source_close(&r->in);
    for (size_t i = 0; i < r->n_skim; i++)
        free(r->skim[i].ref_path);
    name_set_release(&r->names);
    free(r->skim);
    free(r->key);
    free(r->root);
    free(r->head);
    free(r->meta);
    free(r->text);
    free(r->payload);
    XXH3_freeState(r->hash);
    free(r);
}

static int flush_tied(void *arg, struct err *e)
{
    struct stream_reader *r = arg;

    if (stream_flush(r->tied, e) == 0)
        return 0;
    r->told = true;
    return e->code;
}

void stream_tie(struct stream_reader *r, struct stream_writer *w)
{
    r->tied = w;
    r->in.idle = w ? flush_tied : NULL;
    r->in.idle_arg = r;
}

void stream_on_wait(struct stream_reader *r, stream_wait_fn *fn, void *ctx)
{
    r->in.idle = fn;
    r->in.idle_arg = ctx;
}

/* ---- one header ---- */

static unsigned plain_kind(const struct wire *h)
{
    return h->kind & ~(unsigned)FRAME_ANCILLARY;
}

static bool is_tensor(const struct wire *h)
{
    return plain_kind(h) == FRAME_TENSOR || plain_kind(h) == FRAME_REF ||
           plain_kind(h) == FRAME_LOAN;
}

/* A kind that this version does not know but may skip. */
static bool is_foreign(const struct wire *h)
{
    return h->kind & FRAME_ANCILLARY && !is_tensor(h);
}

static int check_kind(const struct stream_reader *r, struct err *e)
{
    const struct wire *h = &r->h;

    if (!is_foreign(h) && !is_tensor(h) &&
        (h->kind < FRAME_HEAD || h->kind > FRAME_END))
        return err_set(e, E_DATA, "kind %u is newer than this tool", h->kind);
    if ((h->kind == FRAME_HEAD) == r->open)
        return bad(e, r->open ? "a second HEAD" : "a stream begins with HEAD");
    return 0;
}

static int check_sizes(const struct stream_reader *r, struct err *e)
{
    const struct wire *h = &r->h;
    uint64_t meta_end = h->offset + sizeof(*h) + h->meta_len;

    if (h->meta_len > (h->kind == FRAME_HEAD ? (uint32_t)FRAME_HEAD_MAX :
                                               (uint32_t)FRAME_META_MAX))
        return bad(e, "metadata is too long");
    if (h->payload_len > WIRE_PAYLOAD_MAX)
        return bad(e, "payload of more than 2^46 bytes");
    if (h->payload_len && !is_foreign(h) && h->kind != FRAME_INDEX &&
        plain_kind(h) != FRAME_TENSOR && plain_kind(h) != FRAME_LOAN)
        return bad(e, "payload in a frame that has none");
    if (!h->payload_len && h->payload_hash != XXH3_64bits(NULL, 0))
        return bad(e, "payload checksum differs");
    if (h->pad_len !=
        frame_padding(meta_end, h->payload_len, h->kind == FRAME_END))
        return bad(e, "payload is not aligned");
    if (h->kind == FRAME_END && h->meta_len != sizeof(struct wire_end))
        return bad(e, "END of a wrong size");
    return 0;
}

static int check_header(const struct stream_reader *r, uint64_t at,
                        struct err *e)
{
    const struct wire *h = &r->h;

    if (memcmp(h->magic, "FTS1", sizeof(h->magic)))
        return bad(e, "not a 4bit-forge stream");
    if (crc32c(0, h, offsetof(struct wire, crc)) != h->crc)
        return bad(e, "header checksum differs");
    if (h->flags || h->reserved[0] || h->reserved[1])
        return bad(e, "header flags are newer than this tool");
    if (h->seq != r->seen.frames)
        return bad(e, "frame is out of order");
    if (h->offset != at - r->start)
        return bad(e, "frame is not where it says");
    if (check_kind(r, e) < 0)
        return e->code;
    return check_sizes(r, e);
}

/* 1: r->h is the next header; 0: the input ended behind a complete stream. */
static int read_header(struct stream_reader *r, struct err *e)
{
    uint64_t at = r->in.at;
    size_t got = 0;
    int rc = source_read(&r->in, &r->h, sizeof(r->h), &got, e);

    if (rc == E_DATA && !got && r->complete && !r->open)
        return 0;
    if (rc == E_DATA && !got && !at)
        return bad(e, "the input is empty (did what writes it fail?)");
    if (got >= sizeof(r->h.magic) &&
        memcmp(r->h.magic, "FTS1", sizeof(r->h.magic)))
        return bad(e, "not a 4bit-forge stream");
    if (rc < 0)
        return rc;
    if (!r->open)
        r->start = at;
    return check_header(r, at, e) < 0 ? e->code : 1;
}

/* ---- what follows it ---- */

static int read_meta(struct stream_reader *r, struct err *e)
{
    static const uint8_t zeros[WIRE_PAGE];
    uint8_t pad[WIRE_PAGE];

    if (r->h.meta_len > r->meta_cap) {
        if (mem_grow(&r->meta, r->h.meta_len, "stream", e) < 0)
            return e->code;
        r->meta_cap = r->h.meta_len;
    }
    if (source_read(&r->in, r->meta, r->h.meta_len, NULL, e) < 0)
        return e->code;
    if (crc32c(0, r->meta, r->h.meta_len) != r->h.meta_crc)
        return bad(e, "metadata checksum differs");
    if (source_read(&r->in, pad, r->h.pad_len, NULL, e) < 0)
        return e->code;
    if (memcmp(pad, zeros, r->h.pad_len))
        return bad(e, "padding is not zero");
    return 0;
}

/* Read bytes [from, to) of the payload and hash them. */
static int fill(struct stream_reader *r, size_t from, size_t to, struct err *e)
{
    size_t step = r->in.file ? to - from : HASH_CHUNK;

    while (from < to) {
        size_t n = to - from < step ? to - from : step;

        if (source_read(&r->in, r->payload + from, n, NULL, e) < 0)
            return e->code;
        XXH3_64bits_update(r->hash, r->payload + from, n);
        from += n;
    }
    return 0;
}

/* Read the payload whole.  From a pipe the buffer starts at FIRST_CHUNK and
 * doubles as bytes arrive; pages of it are only taken when they are written. */
static int read_payload(struct stream_reader *r, struct err *e)
{
    size_t n = r->h.payload_len, done = 0;

    if (r->in.file && n > source_left(&r->in))
        return bad(e, "input ends early");
    XXH3_64bits_reset(r->hash);
    do {
        size_t want = n;

        if (!r->in.file && n > r->payload_cap) {
            want = done ? 2 * done : FIRST_CHUNK;
            if (want < r->payload_cap)
                want = r->payload_cap;
            if (want > n)
                want = n;
        }
        if (stream_reserve(r, want ? want : 1, done, e) < 0 ||
            fill(r, done, want, e) < 0)
            return e->code;
        done = want;
    } while (done < n);
    if (XXH3_64bits_digest(r->hash) != r->h.payload_hash)
        return bad(e, "payload checksum differs");
    return 0;
}

void stream_pass(struct stream_reader *r, struct stream_writer *w,
                 enum role role, stream_look *look, void *ctx)
{
    r->pass_to = w;
    r->pass_role = role;
    r->look = look;
    r->look_ctx = ctx;
}

/* Whether stream_pass() applies to f; small payloads are the tool's to
 * write. */
static bool passes(const struct stream_reader *r, const struct frame *f)
{
    return (r->pass_to ? stream_has_begun(r->pass_to) : r->look != NULL) &&
           f->role == r->pass_role && !r->in.file && !f->loan.lent &&
           f->len >= WIRE_BIG;
}

static int pass_piece(struct stream_reader *r, const struct frame *f,
                      uint64_t at, size_t n, struct err *e)
{
    if (source_read(&r->in, r->payload, n, NULL, e) < 0 ||
        (r->look && r->look(r->look_ctx, f, at, r->payload, n, e) < 0))
        return e->code;
    XXH3_64bits_update(r->hash, r->payload, n);
    if (!r->pass_to || stream_piece(r->pass_to, r->payload, n, e) >= 0)
        return 0;
    r->told = true;
    return e->code;
}

static int pass_payload(struct stream_reader *r, struct frame *f, struct err *e)
{
    f->passed = true;
    if (stream_reserve(r, HASH_CHUNK, 0, e) < 0)
        return e->code;
    if (r->pass_to &&
        stream_begin_tensor(r->pass_to, f, r->h.payload_hash, e) < 0) {
        r->told = true;
        return e->code;
    }
    XXH3_64bits_reset(r->hash);
    for (uint64_t at = 0, n; at < f->len; at += n) {
        n = f->len - at < HASH_CHUNK ? f->len - at : HASH_CHUNK;
        if (pass_piece(r, f, at, n, e) < 0)
            return e->code;
    }
    if (XXH3_64bits_digest(r->hash) != r->h.payload_hash)
        return bad(e, "payload checksum differs");
    return 0;
}

static int take_head(struct stream_reader *r, struct err *e)
{
    const char *format = "", *key = NULL;
    struct json_doc *d;

    if (json_parse(&d, (const char *)r->meta, r->h.meta_len, "HEAD", e) < 0)
        return e->code;
    e->code = 0;
    if (!json_string(json_get(json_root(d), "format"), &format) ||
        strcmp(format, "FTS1"))
        err_set(e, E_DATA, "HEAD does not say format FTS1");
    else if (r->key && !json_string(json_get(json_root(d), "key"), &key))
        err_set(e, E_DATA, "the stream has no key, '%s' is expected", r->key);
    else if (r->key && strcmp(r->key, key))
        err_set(e, E_DATA, "the stream's key is '%s', '%s' is expected", key,
                r->key);
    json_free(d);
    if (e->code)
        return e->code;
    if (mem_grow(&r->head, r->h.meta_len + 1, "HEAD", e) < 0)
        return e->code;
    memcpy(r->head, r->meta, r->h.meta_len);
    r->head[r->h.meta_len] = 0;
    r->open = true;
    return 0;
}

static int take_error(struct stream_reader *r, struct err *e)
{
    static const int codes[] = { E_USAGE,  E_DATA, E_NOINPUT, E_DEVICE, E_BUG,
                                 E_CREATE, E_IO,   E_TEMP,    E_CONFIG };
    int code = E_DATA;
    uint32_t said;

    if (r->h.meta_len < sizeof(said) ||
        r->h.meta_len > sizeof(said) + WIRE_ERROR_MAX)
        return bad(e, "ERROR of a wrong size");
    memcpy(&said, r->meta, sizeof(said));
    for (size_t i = 0; i < ARRAY_LEN(codes); i++)
        if (said == (uint32_t)-codes[i])
            code = codes[i];
    err_set(e, code, "%.*s", (int)(r->h.meta_len - sizeof(said)),
            (const char *)r->meta + sizeof(said));
    r->told = true;
    /* an ERROR frame in a file may never have been printed */
    e->told = !r->in.file;
    return code;
}

static int take_end(struct stream_reader *r, struct err *e)
{
    struct wire_end end;

    memcpy(&end, r->meta, sizeof(end));
    if (memcmp(&end, &r->seen, sizeof(end)))
        return bad(e, "END disagrees with the frames before it");
    name_set_release(&r->names);
    r->seen = (struct wire_end){ 0 };
    r->open = false;
    r->complete = true;
    return 0;
}

/* Read the bytes that describe a loan. */
static int take_loan(struct stream_reader *r, struct frame *f, struct err *e)
{
    if (!r->loans || r->in.file)
        return bad(e, "is memory that another process lends, and nobody has "
                      "told us of it");
    if (read_payload(r, e) < 0)
        return e->code;
    f->data = f->about ? r->payload : NULL;
    return 0;
}

void stream_leave_out(struct stream_reader *r, stream_unwanted *unwanted,
                      const void *ctx)
{
    r->unwanted = unwanted;
    r->unwanted_ctx = ctx;
}

void stream_later(struct stream_reader *r, stream_leave *later, void *ctx)
{
    r->later = later;
    r->later_ctx = ctx;
}

/* 1: *f is a tensor; 0: an unknown ancillary frame, skipped. */
static int take_tensor(struct stream_reader *r, struct frame *f,
                       uint64_t *payload_at, struct err *e)
{
    struct frame_ref ref;
    int rc =
        frame_decode(r->meta, r->h.meta_len, r->h.kind, f, &ref, r->text, e);

    if (rc < 0)
        return rc;
    if (rc == 0)
        return read_payload(r, e) < 0 ? e->code : 0;
    if (f->loan.lent)
        f->about = r->h.payload_len;
    else if (!ref.path && f->len != r->h.payload_len)
        return err_set(e, E_DATA, "'%s': shape and payload disagree", f->name);
    if (name_set_add(&r->names, f, e) < 0)
        return e->code;
    if (f->loan.lent)
        return take_loan(r, f, e) < 0 ? err_prefix(e, "'%s'", f->name) : 1;
    if (r->unwanted && r->in.file && r->unwanted(r->unwanted_ctx, f)) {
        f->data = NULL;
        return source_skip(&r->in, r->h.payload_len, e) < 0 ? e->code : 1;
    }
    if (r->later && r->in.file && !ref.path) {
        rc = r->later(r->later_ctx, f, r->in.at, e);
        if (rc < 0)
            return rc;
        f->passed = rc > 0;
        f->data = NULL;
        if (rc > 0)
            return stream_skimmed(r, f, &ref, e) < 0 ? e->code : 1;
    }
    if (payload_at && r->in.file) {
        *payload_at = r->in.at;
        return stream_skimmed(r, f, &ref, e) < 0 ? e->code : 1;
    }
    if (ref.path)
        rc = stream_read_ref(r, &ref, NULL, f->len, e);
    else
        rc = passes(r, f) ? pass_payload(r, f, e) : read_payload(r, e);
    f->data = f->passed ? NULL : r->payload;
    return rc < 0 ? err_prefix(e, "'%s'", f->name) : 1;
}

/* Read one frame.  1: *f is a tensor; 2: another kind; 0: end of the input. */
static int read_frame(struct stream_reader *r, struct frame *f,
                      uint64_t *payload_at, struct err *e)
{
    int rc = read_header(r, e);

    if (rc <= 0)
        return rc;
    if (read_meta(r, e) < 0)
        return e->code;
    r->last_frame = r->seen.frames;
    if (r->h.kind == FRAME_END)
        return take_end(r, e) < 0 ? e->code : 2;
    if (r->h.kind == FRAME_ERROR)
        return take_error(r, e);
    if (r->h.kind == FRAME_HEAD)
        rc = take_head(r, e);
    else if (is_tensor(&r->h))
        rc = take_tensor(r, f, payload_at, e);
    else
        rc = read_payload(r, e);
    if (rc < 0)
        return rc;
    r->seen.frames++;
    r->seen.tensors += is_tensor(&r->h);
    r->seen.payload += r->h.payload_len;
    if (!(r->h.kind & FRAME_ANCILLARY))
        r->seen.content = frame_content(r->seen.content, &r->h);
    return rc == 1 ? 1 : 2;
}

static int next(struct stream_reader *r, struct frame *f, uint64_t *payload_at,
                struct err *e)
{
    int rc = 2;

    if (r->failed) {
        *e = r->why;
        return r->failed;
    }
    while (rc == 2)
        rc = read_frame(r, f, payload_at, e);
    if (rc >= 0)
        return rc;
    if (!r->told) /* the message of an ERROR frame stays as it is */
        err_prefix(e, "'%s': frame %llu", r->in.name,
                   (unsigned long long)r->seen.frames);
    r->failed = rc;
    r->why = *e;
    return rc;
}

int stream_next(struct stream_reader *r, struct frame *f, struct err *e)
{
    return next(r, f, NULL, e);
}

bool stream_wait(struct stream_reader *r, int other)
{
    return r->failed || source_wait(&r->in, other);
}

int stream_skim(struct stream_reader *r, struct frame *f,
                uint64_t *payload_offset, struct err *e)
{
    *payload_offset = 0;
    return next(r, f, payload_offset, e);
}

const char *stream_head(const struct stream_reader *r)
{
    return r->head;
}

uint64_t stream_bytes(const struct stream_reader *r, uint64_t *total)
{
    if (total)
        *total = r->in.file ? file_size(r->in.file) : 0;
    return r->in.at;
}

uint64_t stream_frame_number(const struct stream_reader *r)
{
    return r->last_frame;
}
