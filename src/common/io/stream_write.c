/* stream_write.c - see stream.h: writing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/io/crc32c.h"
#include "common/io/frame.h"
#include "common/io/hash.h"
#include "common/io/json.h"
#include "common/io/stream_sink.h"

const char *stream_args = "[]";

struct stream_writer {
    struct sink out;
    char *key, *facts;
    struct json_writer programs; /* entries of the inputs' HEADs, "{..},{..}" */
    uint8_t *meta;               /* FRAME_META_MAX bytes */
    uint64_t at;                 /* offset in the stream of the next byte */
    struct wire_end end;
    struct name_set names;
    bool begun;
    size_t due; /* bytes that stream_piece() has yet to write */
};

static bool on_stdout; /* a writer was created on standard output */

static void writer_free(struct stream_writer *w)
{
    sink_drop(&w->out);
    name_set_release(&w->names);
    free(w->programs.text);
    free(w->key);
    free(w->facts);
    free(w->meta);
    free(w);
}

static char *copy_text(const char *s, struct err *e)
{
    char *p = mem_alloc(strlen(s) + 1, "stream", e);

    return p ? strcpy(p, s) : NULL;
}

int stream_create(struct stream_writer **out, const struct stream_output *o,
                  struct err *e)
{
    struct stream_writer *w = mem_zero(1, sizeof(*w), "stream", e);

    if (!w)
        return e->code;
    jw_init(&w->programs, 0);
    w->meta = mem_alloc(FRAME_META_MAX, "stream", e);
    if (!w->meta || (o->key && !(w->key = copy_text(o->key, e))) ||
        (o->facts && !(w->facts = copy_text(o->facts, e))) ||
        sink_open(&w->out, o->path, e) < 0) {
        writer_free(w);
        return e->code;
    }
    on_stdout |= w->out.fd == 1;
    *out = w;
    return 0;
}

int stream_facts(struct stream_writer *w, const char *facts, struct err *e)
{
    free(w->facts);
    w->facts = copy_text(facts, e);
    return w->facts ? 0 : e->code;
}

/* Whether `entry` is among the programs.  Both are JSON objects as jw_value()
 * formats them, so equal text means equal entries. */
static bool recorded(const struct stream_writer *w, const char *entry)
{
    size_t n = strlen(entry);
    const char *p = w->programs.text;

    while (p && (p = strstr(p, entry))) {
        if ((p == w->programs.text || p[-1] == ',') && (p[n] == ',' || !p[n]))
            return true;
        p++;
    }
    return false;
}

int stream_inherit(struct stream_writer *w, const char *head, struct err *e)
{
    struct json_doc *d;
    const struct json *v;

    if (!head || w->begun)
        return 0;
    if (json_parse(&d, head, strlen(head), "HEAD", e) < 0)
        return e->code;
    e->code = 0;
    v = json_first(json_get(json_root(d), "programs"));
    for (; v && !e->code; v = json_after(v)) {
        struct json_writer one;

        jw_init(&one, 0);
        jw_value(&one, v);
        if (!one.failed && !recorded(w, one.text))
            jw_raw(&w->programs, one.text);
        if (one.failed || w->programs.failed)
            err_set(e, E_TEMP, "HEAD: cannot allocate");
        free(one.text);
    }
    json_free(d);
    return e->code;
}

/* ---- bytes out ---- */

static int emit(struct stream_writer *w, const void *data, size_t n,
                struct err *e)
{
    w->at += n;
    return sink_put(&w->out, data, n, e);
}

/* Write header, metadata and padding; the payload of len bytes is due next. */
static int emit_header(struct stream_writer *w, unsigned kind, const void *meta,
                       size_t meta_len, uint64_t hash, size_t len,
                       struct err *e)
{
    static const uint8_t zeros[WIRE_PAGE];
    struct wire h = {
        .kind = (uint16_t)kind,
        .seq = w->end.frames,
        .offset = w->at,
        .meta_len = (uint32_t)meta_len,
        .payload_len = len,
        .payload_hash = hash,
        .meta_crc = crc32c(0, meta, meta_len),
    };

    h.pad_len =
        frame_padding(w->at + sizeof(h) + meta_len, len, kind == FRAME_END);
    frame_seal(&h);
    if (w->out.broken)
        return err_set(e, E_BUG, "'%s': write after an error", w->out.name);
    if (emit(w, &h, sizeof(h), e) < 0 || emit(w, meta, meta_len, e) < 0 ||
        emit(w, zeros, h.pad_len, e) < 0)
        return e->code;
    w->end.frames++;
    w->end.payload += len;
    if (!(kind & FRAME_ANCILLARY))
        w->end.content = frame_content(w->end.content, &h);
    return 0;
}

/* Write a frame without payload. */
static int emit_frame(struct stream_writer *w, unsigned kind, const void *meta,
                      size_t meta_len, struct err *e)
{
    return emit_header(w, kind, meta, meta_len, XXH3_64bits(NULL, 0), 0, e);
}

static int emit_payload(struct stream_writer *w, const struct frame *f,
                        struct err *e)
{
    size_t n = frame_bytes(f);

    w->at += n;
    return f->lent && !f->loan.lent ? sink_lend(&w->out, f->data, n, e) :
                                      sink_put(&w->out, f->data, n, e);
}

static int emit_head(struct stream_writer *w, struct err *e)
{
    struct json_writer j;
    int rc;

    if (w->begun)
        return 0;
    w->begun = true;
    jw_init(&j, 0);
    jw_begin(&j, '{');
    jw_key(&j, "format"), jw_string(&j, "FTS1");
    jw_key(&j, "programs"), jw_begin(&j, '[');
    if (w->programs.len)
        jw_raw(&j, w->programs.text);
    jw_begin(&j, '{');
    jw_key(&j, "tool"), jw_string(&j, progname);
    jw_key(&j, "version"), jw_string(&j, FORGE_VERSION);
    jw_key(&j, "args"), jw_raw(&j, stream_args);
    if (w->facts && *w->facts)
        jw_raw(&j, w->facts);
    jw_end(&j, '}');
    jw_end(&j, ']');
    if (w->key)
        jw_key(&j, "key"), jw_string(&j, w->key);
    jw_end(&j, '}');
    rc = j.failed ? err_set(e, E_TEMP, "HEAD: cannot allocate") :
         j.len > FRAME_HEAD_MAX ?
                    err_set(e, E_DATA, "HEAD of more than 1 MiB") :
                    emit_frame(w, FRAME_HEAD, j.text, j.len, e);
    free(j.text);
    return rc;
}

/* Write all of a TENSOR (ref NULL) or REF frame but its payload of len
 * bytes. */
static int begin_tensor(struct stream_writer *w, const struct frame *f,
                        const struct frame_ref *ref, uint64_t hash, size_t len,
                        struct err *e)
{
    unsigned kind = ref ? FRAME_REF : f->loan.lent ? FRAME_LOAN : FRAME_TENSOR;
    size_t n;

    if (f->loan.lent && !w->out.pipe)
        return err_set(e, E_USAGE,
                       "'%s': '%s' is memory that is lent: it goes into pipes "
                       "only",
                       w->out.name, f->name);
    if (emit_head(w, e) < 0)
        return e->code;
    if (frame_encode(f, ref, w->meta, &n, e) < 0 ||
        name_set_add(&w->names, f, e) < 0)
        return err_prefix(e, "'%s'", w->out.name);
    if (f->ancillary)
        kind |= FRAME_ANCILLARY;
    if (emit_header(w, kind, w->meta, n, hash, len, e) < 0)
        return e->code;
    w->end.tensors++;
    return 0;
}

static int write_tensor(struct stream_writer *w, const struct frame *f,
                        const struct frame_ref *ref, struct err *e)
{
    size_t len = ref ? 0 : frame_bytes(f);

    if (begin_tensor(w, f, ref, XXH3_64bits(f->data, len), len, e) < 0)
        return e->code;
    return ref ? 0 : emit_payload(w, f, e);
}

bool stream_has_begun(const struct stream_writer *w)
{
    return w->begun;
}

int stream_begin_tensor(struct stream_writer *w, const struct frame *f,
                        uint64_t hash, struct err *e)
{
    struct frame there = *f;

    there.data = w->meta; /* only checked for NULL */
    if (begin_tensor(w, &there, NULL, hash, f->len, e) < 0)
        return e->code;
    w->due = f->len;
    return 0;
}

int stream_piece(struct stream_writer *w, const void *p, size_t n,
                 struct err *e)
{
    w->due -= n;
    return emit(w, p, n, e);
}

bool stream_is_pipe(const struct stream_writer *w)
{
    return w->out.pipe;
}

int stream_reader_of(const struct stream_writer *w)
{
    return sink_reader(&w->out);
}

uint64_t stream_there(const struct stream_writer *w)
{
    return sink_there(&w->out);
}

int stream_write(struct stream_writer *w, const struct frame *f, struct err *e)
{
    return write_tensor(w, f, NULL, e);
}

int stream_write_ref(struct stream_writer *w, const struct frame *f,
                     const struct frame_ref *ref, struct err *e)
{
    return write_tensor(w, f, ref, e);
}

int stream_flush(struct stream_writer *w, struct err *e)
{
    if (w->out.broken)
        return err_set(e, E_BUG, "'%s': write after an error", w->out.name);
    return sink_flush(&w->out, e);
}

int stream_finish(struct stream_writer *w, struct err *e)
{
    struct wire_end end;
    int rc = emit_head(w, e);

    end = w->end;
    if (rc == 0)
        rc = emit_frame(w, FRAME_END, &end, sizeof(end), e);
    if (rc == 0)
        rc = sink_finish(&w->out, e);
    writer_free(w);
    return rc;
}

void stream_abort(struct stream_writer *w, const struct err *why)
{
    char meta[4 + WIRE_ERROR_MAX + 1];
    struct err e;
    uint32_t code;
    size_t n;

    if (!w)
        return;
    if (!w->out.pub && !w->out.broken && !w->due && why) {
        code = (uint32_t)-why->code;
        memcpy(meta, &code, sizeof(code));
        snprintf(meta + 4, sizeof(meta) - 4, "%s%s%s",
                 why->told ? "" : progname, why->told ? "" : ": ", why->msg);
        n = 4 + strlen(meta + 4);
        if (emit_head(w, &e) < 0 ||
            emit_frame(w, FRAME_ERROR, meta, n, &e) < 0 ||
            sink_flush(&w->out, &e) < 0)
            w->out.broken = true; /* the reader will find that END is missing */
    }
    writer_free(w);
}

void stream_refuse(const struct err *why)
{
    const struct stream_output to = { .path = NULL };
    struct stream_writer *w;
    struct stat st;
    struct err e;

    if (!on_stdout && fstat(1, &st) == 0 && S_ISFIFO(st.st_mode) &&
        stream_create(&w, &to, &e) == 0)
        stream_abort(w, why);
}
