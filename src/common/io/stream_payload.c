/* stream_payload.c - see stream.h: payloads in other files (REF frames), and
 * payloads that were skimmed and are read later. */
#include <stdlib.h>
#include <string.h>

#include "common/io/stream_reader.h"
#include "common/io/stream_ref.h"

int stream_copy_text(char **dst, const char *s, struct err *e)
{
    if (!s)
        return 0;
    *dst = mem_alloc(strlen(s) + 1, "stream", e);
    if (!*dst)
        return e->code;
    strcpy(*dst, s);
    return 0;
}

int stream_reserve(struct stream_reader *r, size_t n, size_t keep,
                   struct err *e)
{
    uint8_t *p;

    if (n <= r->payload_cap)
        return 0;
    /* free first: memory may not hold two of the largest payloads */
    if (!keep) {
        free(r->payload);
        r->payload = NULL;
        r->payload_cap = 0;
    }
    p = mem_pages(n, "payload", e);
    if (!p)
        return e->code;
    if (keep)
        memcpy(p, r->payload, keep);
    free(r->payload);
    r->payload = p;
    r->payload_cap = n;
    return 0;
}

bool stream_exchange(struct stream_reader *r, size_t n, void **p, size_t *cap)
{
    void *payload = r->payload;
    size_t had = r->payload_cap;

    if (n < had / 2)
        return false;
    r->payload = *p;
    r->payload_cap = *cap;
    *p = payload;
    *cap = had;
    return true;
}

int stream_read_ref(struct stream_reader *r, const struct frame_ref *ref,
                    void *buf, size_t n, struct err *e)
{
    struct file *f;
    int rc;

    if (!r->root)
        return err_set(e, E_DATA,
                       "refers to the file '%s', and no directory for such "
                       "files was given",
                       ref->path);
    if (ref_open(&f, r->root, ref->path, e) < 0)
        return e->code;
    rc = n > file_size(f) || ref->offset > file_size(f) - n ?
             err_set(e, E_DATA, "'%s': the file ends early", ref->path) :
             0;
    if (rc == 0 && !buf) {
        rc = stream_reserve(r, n ? n : 1, 0, e);
        buf = r->payload;
    }
    if (rc == 0)
        rc = file_read(f, buf, n, ref->offset, e);
    file_close(f);
    if (rc == 0 && XXH3_64bits(buf, n) != ref->hash)
        rc = err_set(e, E_DATA, "'%s': payload checksum differs", ref->path);
    return rc;
}

int stream_skimmed(struct stream_reader *r, const struct frame *f,
                   const struct frame_ref *ref, struct err *e)
{
    struct skimmed s = {
        .at = r->in.at,
        .len = f->len,
        .hash = ref->path ? ref->hash : r->h.payload_hash,
        .ref_offset = ref->offset,
    };

    if (r->n_skim == r->skim_cap) {
        size_t cap = r->skim_cap ? 2 * r->skim_cap : 64;

        if (mem_grow(&r->skim, cap * sizeof(*r->skim), "stream", e) < 0)
            return e->code;
        r->skim_cap = cap;
    }
    if (stream_copy_text(&s.ref_path, ref->path, e) < 0)
        return e->code;
    r->skim[r->n_skim++] = s;
    return source_skip(&r->in, r->h.payload_len, e);
}

static int by_place(const void *a, const void *b)
{
    const struct skimmed *x = a, *y = b;

    return (x->at > y->at) - (x->at < y->at);
}

static const struct skimmed *find(const struct stream_reader *r,
                                  uint64_t payload_offset)
{
    struct skimmed key = { .at = payload_offset };

    return r->n_skim ?
               bsearch(&key, r->skim, r->n_skim, sizeof(key), by_place) :
               NULL;
}

int stream_payload_piece(struct stream_reader *r, uint64_t payload_offset,
                         uint64_t at, void *buf, size_t n, struct err *e)
{
    const struct skimmed *s = find(r, payload_offset);

    if (s && s->ref_path)
        return err_set(e, E_DATA,
                       "'%s': refers to the file '%s', which is not read in "
                       "pieces",
                       r->in.name, s->ref_path);
    return file_read(r->in.file, buf, n, payload_offset + at, e);
}

int stream_payload_check(struct stream_reader *r, uint64_t payload_offset,
                         uint64_t hash, struct err *e)
{
    const struct skimmed *s = find(r, payload_offset);

    return s && s->hash == hash ?
               0 :
               err_set(e, E_DATA, "'%s': payload checksum differs", r->in.name);
}

int stream_payload(struct stream_reader *r, uint64_t payload_offset, void *buf,
                   size_t len, struct err *e)
{
    const struct skimmed *s = find(r, payload_offset);
    struct frame_ref ref;

    if (!s || s->len != len)
        return err_set(e, E_BUG, "'%s': no payload of %zu bytes was skimmed",
                       r->in.name, len);
    if (s->ref_path) {
        ref = (struct frame_ref){ s->ref_path, s->ref_offset, s->hash };
        return stream_read_ref(r, &ref, buf, len, e) < 0 ?
                   err_prefix(e, "'%s'", r->in.name) :
                   0;
    }
    if (file_read(r->in.file, buf, len, s->at, e) < 0)
        return e->code;
    if (XXH3_64bits(buf, len) != s->hash)
        return err_set(e, E_DATA, "'%s': payload checksum differs", r->in.name);
    return 0;
}
