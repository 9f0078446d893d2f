/* frame.c - see frame.h; and the small functions on frames of stream.h. */
#include "common/io/frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/io/crc32c.h"
#include "common/io/utf8.h"

static const char *const role_names[ROLE_COUNT] = {
    "?",      "tokens", "hidden", "activation", "routing", "hessian",
    "cross",  "weight", "qmeta",  "codes",      "scales",  "zeros",
    "tensor", "hitmap", "map",    "note",       "index",
};

const char *role_name(enum role r)
{
    return (unsigned)r < ROLE_COUNT ? role_names[r] : "?";
}

enum role role_parse(const char *name)
{
    for (int r = ROLE_NONE + 1; r < ROLE_COUNT; r++)
        if (!strcmp(name, role_names[r]))
            return (enum role)r;
    return ROLE_NONE;
}

int frame_each_module(const struct frame *f,
                      int (*fn)(const char *module, void *arg), void *arg)
{
    char name[FRAME_NAME_MAX + 1];

    for (const char *p = f->modules; p && *p;) {
        size_t n = strcspn(p, "\n");
        int rc;

        snprintf(name, sizeof(name), "%.*s", (int)n, p);
        rc = fn(name, arg);
        if (rc)
            return rc;
        p += n + (p[n] == '\n');
    }
    return 0;
}

static int same(const char *module, void *arg)
{
    return !strcmp(module, arg);
}

bool frame_has_module(const struct frame *f, const char *module)
{
    return frame_each_module(f, same, (void *)(uintptr_t)module);
}

const char *frame_shape(const struct frame *f, char *buf, size_t cap)
{
    size_t n = 0;

    if (cap)
        *buf = 0;
    for (int i = 0; i < f->ndim && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%llu", i ? "x" : "",
                              (unsigned long long)f->dims[i]);
    return buf;
}

uint32_t frame_padding(uint64_t at, uint64_t n, bool end)
{
    uint64_t align = end || n >= WIRE_BIG ? WIRE_PAGE : WIRE_ALIGN;

    return n || end ? (uint32_t)(-at & (align - 1)) : 0;
}

void frame_seal(struct wire *h)
{
    memcpy(h->magic, "FTS1", sizeof(h->magic));
    h->crc = crc32c(0, h, offsetof(struct wire, crc));
}

uint64_t frame_content(uint64_t hash, const struct wire *h)
{
    struct wire c = *h;

    c.seq = 0;
    c.offset = 0;
    c.pad_len = 0;
    c.crc = 0;
    return XXH3_64bits_withSeed(&c, sizeof(c), hash);
}

/* ---- the meta of a tensor: a fixed part, dims, name, entries ---- */

struct meta_start {
    uint16_t role, dtype;
    uint8_t ndim, zero;
    uint16_t name_len;
};

/* One or more lines of UTF-8, none of them empty. */
static bool good_modules(const char *s, size_t n)
{
    while (n) {
        const char *nl = memchr(s, '\n', n);
        size_t k = nl ? (size_t)(nl - s) : n;

        if (!k || k > FRAME_NAME_MAX || !utf8_printable(s, k))
            return false;
        if (nl && ++k == n)
            return false; /* an empty line */
        s += k;
        n -= k;
    }
    return true;
}

/* Rules for shape, type, name and size that hold for both writing and
 * reading. */
static int check_tensor(const struct frame *f, uint64_t *bytes, struct err *e)
{
    size_t n = strlen(f->name);

    if (!n || !utf8_printable(f->name, n))
        return err_set(e, E_DATA, "name is empty or no printable UTF-8");
    for (int i = 0; i < f->ndim; i++)
        if (f->dims[i] > WIRE_DIM_MAX)
            return err_set(e, E_DATA, "'%s': dimension beyond 2^40", f->name);
    if (!dtype_size(f->dtype, f->ndim, f->dims, bytes) ||
        *bytes > WIRE_PAYLOAD_MAX)
        return err_set(e, E_DATA, "'%s': shape overflows or ends inside a byte",
                       f->name);
    if (f->role == ROLE_NOTE && *bytes > WIRE_NOTE_MAX)
        return err_set(e, E_DATA, "'%s': note of more than 1 MiB", f->name);
    return 0;
}

struct out {
    uint8_t *buf;
    size_t len;
    bool full;
};

static void put(struct out *o, const void *data, size_t n)
{
    if (n > FRAME_META_MAX - o->len) {
        o->full = true;
        return;
    }
    if (n)
        memcpy(o->buf + o->len, data, n);
    o->len += n;
}

static void put_entry(struct out *o, uint16_t tag, const void *data, size_t n)
{
    uint16_t len = (uint16_t)n;

    if (n > UINT16_MAX)
        o->full = true;
    put(o, &tag, sizeof(tag));
    put(o, &len, sizeof(len));
    put(o, data, n);
}

static void put_entries(struct out *o, const struct frame *f,
                        const struct frame_ref *ref)
{
    uint16_t scale = (uint16_t)f->scale_dtype;

    if (f->modules && *f->modules)
        put_entry(o, TAG_MODULES, f->modules, strlen(f->modules));
    if (f->samples)
        put_entry(o, TAG_SAMPLES, &f->samples, sizeof(f->samples));
    if (f->sequence)
        put_entry(o, TAG_SEQUENCE, &f->sequence, sizeof(f->sequence));
    if (f->block)
        put_entry(o, TAG_BLOCK, &f->block, sizeof(f->block));
    if (f->group)
        put_entry(o, TAG_GROUP, &f->group, sizeof(f->group));
    if (scale)
        put_entry(o, TAG_SCALE_DTYPE, &scale, sizeof(scale));
    if (f->last)
        put_entry(o, TAG_LAST, NULL, 0);
    if (ref) {
        put_entry(o, TAG_REF_PATH, ref->path, strlen(ref->path));
        put_entry(o, TAG_REF_OFFSET, &ref->offset, sizeof(ref->offset));
        put_entry(o, TAG_REF_HASH, &ref->hash, sizeof(ref->hash));
    }
    if (f->loan.lent)
        put_entry(o, TAG_LOAN, &f->loan, sizeof(f->loan));
}

int frame_encode(const struct frame *f, const struct frame_ref *ref,
                 uint8_t *buf, size_t *len, struct err *e)
{
    struct meta_start s = {
        .role = (uint16_t)f->role,
        .dtype = (uint16_t)f->dtype,
        .ndim = (uint8_t)f->ndim,
        .name_len = (uint16_t)strlen(f->name),
    };
    struct out o = { .buf = buf };
    uint64_t bytes;

    if (f->role <= ROLE_NONE || f->role >= ROLE_COUNT || f->ndim < 0 ||
        f->ndim > FRAME_MAX_DIMS)
        return err_set(e, E_BUG, "'%s': frame without role or shape", f->name);
    if (check_tensor(f, &bytes, e) < 0)
        return e->code;
    if (bytes != f->len || (bytes && !f->data && !ref && !f->loan.lent))
        return err_set(e, E_BUG, "'%s': shape and payload disagree", f->name);
    if (f->modules && !good_modules(f->modules, strlen(f->modules)))
        return err_set(e, E_DATA, "'%s': list of modules is malformed",
                       f->name);
    put(&o, &s, sizeof(s));
    put(&o, f->dims, (size_t)f->ndim * sizeof(f->dims[0]));
    put(&o, f->name, s.name_len);
    put_entries(&o, f, ref);
    if (o.full)
        return err_set(e, E_DATA, "'%s': metadata of more than 64 KiB",
                       f->name);
    *len = o.len;
    return 0;
}

struct in {
    const uint8_t *p;
    size_t left;
    char *text; /* end of the texts stored so far */
};

static bool get(struct in *in, void *dst, size_t n)
{
    if (in->left < n)
        return false;
    memcpy(dst, in->p, n);
    in->p += n;
    in->left -= n;
    return true;
}

static char *get_text(struct in *in, size_t n)
{
    char *s = in->text;

    memcpy(s, in->p, n);
    s[n] = 0;
    in->text += n + 1;
    return s;
}

/* A number of exactly n bytes, not 0: an entry that is 0 is left out when
 * writing. */
static bool number(const struct in *in, size_t len, void *dst, size_t n)
{
    static const uint8_t zero[8];

    if (len != n || !memcmp(in->p, zero, n))
        return false;
    memcpy(dst, in->p, n);
    return true;
}

/* 1: parsed; 0: malformed; -1: unknown tag. */
static int get_entry(struct in *in, uint16_t tag, size_t len, struct frame *f,
                     struct frame_ref *ref)
{
    uint16_t dt = 0;

    switch (tag) {
    case TAG_MODULES:
        f->modules = get_text(in, len);
        return len && good_modules(f->modules, len);
    case TAG_SAMPLES: return number(in, len, &f->samples, 8);
    case TAG_SEQUENCE: return number(in, len, &f->sequence, 8);
    case TAG_BLOCK: return number(in, len, &f->block, 4);
    case TAG_GROUP: return number(in, len, &f->group, 4);
    case TAG_SCALE_DTYPE:
        if (!number(in, len, &dt, 2))
            return 0;
        f->scale_dtype = (enum dtype)dt;
        return dt < DT_COUNT ? 1 : -1;
    case TAG_LAST: f->last = true; return !len;
    case TAG_REF_PATH:
        ref->path = get_text(in, len);
        return len && utf8_printable(ref->path, len);
    case TAG_REF_OFFSET:
        if (len != 8)
            return 0;
        memcpy(&ref->offset, in->p, 8); /* may be 0 */
        return 1;
    case TAG_REF_HASH:
        if (len != 8)
            return 0;
        memcpy(&ref->hash, in->p, 8);
        return 1;
    case TAG_LOAN:
        if (len != sizeof(f->loan))
            return 0;
        memcpy(&f->loan, in->p, sizeof(f->loan));
        return f->loan.lent == LENT_DEVICE || f->loan.lent == LENT_HOST;
    default: return tag & TAG_ANCILLARY ? 1 : -1;
    }
}

static int get_entries(struct in *in, unsigned kind, struct frame *f,
                       struct frame_ref *ref, struct err *e)
{
    unsigned seen = 0, ref_tags = 0;

    while (in->left) {
        uint16_t tag, len;
        int rc;

        if (!get(in, &tag, sizeof(tag)) || !get(in, &len, sizeof(len)) ||
            len > in->left)
            return err_set(e, E_DATA, "metadata ends inside an entry");
        if (tag <= seen)
            return err_set(e, E_DATA, "metadata entries are out of order");
        seen = tag;
        rc = get_entry(in, tag, len, f, ref);
        if (rc < 0)
            return err_set(e, E_DATA,
                           "metadata entry %u is newer than this tool", tag);
        if (!rc)
            return err_set(e, E_DATA, "metadata entry %u is malformed", tag);
        if (tag >= TAG_REF_PATH && tag <= TAG_REF_HASH)
            ref_tags++;
        in->p += len;
        in->left -= len;
    }
    if (ref_tags != (kind == FRAME_REF ? 3 : 0))
        return err_set(e, E_DATA, "%s",
                       kind == FRAME_REF ? "reference without a file" :
                                           "reference in a tensor frame");
    if ((f->loan.lent != 0) != (kind == FRAME_LOAN))
        return err_set(e, E_DATA, "%s",
                       kind == FRAME_LOAN ? "loan without its place" :
                                            "loan in a tensor frame");
    return 0;
}

int frame_decode(const uint8_t *meta, size_t len, unsigned kind,
                 struct frame *f, struct frame_ref *ref, char *text,
                 struct err *e)
{
    struct in in = { .p = meta, .left = len, .text = text };
    struct meta_start s;
    uint64_t bytes;

    memset(f, 0, sizeof(*f));
    *ref = (struct frame_ref){ 0 };
    if (!get(&in, &s, sizeof(s)))
        return err_set(e, E_DATA, "metadata ends early");
    if (s.zero || s.role >= ROLE_COUNT || s.dtype >= DT_COUNT) {
        if (kind & FRAME_ANCILLARY)
            return 0;
        return err_set(e, E_DATA, "%s %u is newer than this tool",
                       s.role >= ROLE_COUNT ? "role" :
                       s.dtype >= DT_COUNT  ? "type" :
                                              "reserved byte",
                       s.role >= ROLE_COUNT ? s.role :
                       s.dtype >= DT_COUNT  ? s.dtype :
                                              s.zero);
    }
    if (s.ndim > FRAME_MAX_DIMS)
        return err_set(e, E_DATA, "%u dimensions, at most 8 are allowed",
                       s.ndim);
    if (s.name_len > FRAME_NAME_MAX)
        return err_set(e, E_DATA, "name of more than 512 bytes");
    if (!s.role)
        return err_set(e, E_DATA, "tensor without a role");
    if (!get(&in, f->dims, s.ndim * sizeof(f->dims[0])) ||
        !get(&in, f->name, s.name_len))
        return err_set(e, E_DATA, "metadata ends early");
    if (strlen(f->name) != s.name_len)
        return err_set(e, E_DATA, "name is empty or no printable UTF-8");
    f->role = (enum role)s.role;
    f->dtype = (enum dtype)s.dtype;
    f->ndim = s.ndim;
    f->ancillary = kind & FRAME_ANCILLARY;
    if (check_tensor(f, &bytes, e) < 0)
        return e->code;
    f->len = bytes;
    if (get_entries(&in, kind & ~(unsigned)FRAME_ANCILLARY, f, ref, e) < 0)
        return e->code;
    return 1;
}

/* ---- names seen ---- */

void name_set_release(struct name_set *s)
{
    free(s->slot);
    *s = (struct name_set){ 0 };
}

static uint64_t *find_slot(uint64_t (*slot)[2], size_t cap, uint64_t lo,
                           uint64_t hi)
{
    size_t i = lo & (cap - 1);

    while ((slot[i][0] || slot[i][1]) && (slot[i][0] != lo || slot[i][1] != hi))
        i = (i + 1) & (cap - 1);
    return slot[i];
}

static int grow(struct name_set *s, struct err *e)
{
    size_t cap = s->cap ? 2 * s->cap : 256;
    uint64_t(*slot)[2] = mem_zero(cap, sizeof(*slot), "names", e);

    if (!slot)
        return e->code;
    for (size_t i = 0; i < s->cap; i++) {
        uint64_t *old = s->slot[i];

        if (old[0] || old[1])
            memcpy(find_slot(slot, cap, old[0], old[1]), old, sizeof(*slot));
    }
    free(s->slot);
    s->slot = slot;
    s->cap = cap;
    return 0;
}

int name_set_add(struct name_set *s, const struct frame *f, struct err *e)
{
    struct {
        uint64_t sequence;
        uint16_t role, dtype;
        char name[FRAME_NAME_MAX + 4];
    } key = { .sequence = f->sequence, .role = (uint16_t)f->role };
    size_t n = strlen(f->name);
    XXH128_hash_t h;
    uint64_t *slot;

    if (f->ancillary || f->role == ROLE_NOTE)
        return 0;
    /* expert indices and weights share a name; their types differ */
    if (f->role == ROLE_ROUTING)
        key.dtype = (uint16_t)f->dtype;
    memcpy(key.name, f->name, n);
    h = XXH3_128bits(&key, offsetof(__typeof__(key), name) + n);
    if (s->count == WIRE_TENSORS_MAX)
        return err_set(e, E_DATA, "more than 2^24 tensors in one stream");
    if (4 * s->count >= 3 * s->cap && grow(s, e) < 0)
        return e->code;
    slot = find_slot(s->slot, s->cap, h.low64, h.high64);
    if (slot[0] || slot[1])
        return err_set(e, E_DATA, "%s '%s' appears twice", role_name(f->role),
                       f->name);
    slot[0] = h.low64;
    slot[1] = h.high64;
    s->count++;
    return 0;
}
