/* FTS1: what is written is read; whatever is damaged is refused. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/io/crc32c.h"
#include "common/io/frame.h"
#include "test.h"

static struct err e;
static char path[64];

static int file_of(const void *data, size_t n)
{
    int fd = memfd_create("stream", 0);

    CHECK(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return fd;
}

/* Number of tensors, or the error; `skim` reads without the payloads. */
static int read_all(const void *data, size_t n, bool skim)
{
    int fd = file_of(data, n), count = 0, rc;
    struct stream_reader *r;
    struct frame f;
    uint64_t at;

    CHECK(stream_open(&r, path, NULL, &e) == 0);
    while ((rc = skim ? stream_skim(r, &f, &at, &e) : stream_next(r, &f, &e)) >
           0)
        count++;
    if (rc < 0) /* and it stays an error */
        CHECK(stream_next(r, &f, &e) == rc);
    stream_close(r);
    close(fd);
    return rc < 0 ? rc : count;
}

static struct frame sample(const char *name, const void *data, uint64_t n)
{
    struct frame f = { .role = ROLE_WEIGHT,
                       .dtype = DT_U8,
                       .ndim = 1,
                       .dims = { n },
                       .data = data,
                       .len = n };

    snprintf(f.name, sizeof(f.name), "%s", name);
    return f;
}

/* HEAD, two tensors, END; returns the bytes in a malloc'ed block. */
static uint8_t *sample_stream(size_t *n)
{
    static const uint8_t data[100] = { 1, 2, 3 };
    char out[] = "/tmp/forge-test-XXXXXX";
    struct frame f = sample("m.q_proj", data, sizeof(data));
    struct stream_writer *w;
    uint8_t *bytes;
    int fd = mkstemp(out);

    CHECK(fd >= 0 && close(fd) == 0);
    CHECK(stream_create(&w, &(struct stream_output){ .path = out }, &e) == 0);
    f.modules = "a\nb";
    f.samples = 7;
    f.sequence = 1;
    f.block = 3;
    f.group = 4;
    f.scale_dtype = DT_BF16;
    f.last = true;
    CHECK(stream_write(w, &f, &e) == 0);
    f = sample("m.k_proj", NULL, 0);
    CHECK(stream_write(w, &f, &e) == 0);
    CHECK(stream_write(w, &f, &e) == E_DATA); /* twice */
    CHECK(stream_finish(w, &e) == 0);
    fd = open(out, O_RDONLY);
    bytes = malloc(8192);
    *n = (size_t)read(fd, bytes, 8192);
    close(fd);
    unlink(out);
    return bytes;
}

static void test_round_trip(const uint8_t *s, size_t n)
{
    int fd = file_of(s, n);
    struct stream_reader *r;
    struct frame f;
    uint64_t at;
    uint8_t data[100];

    CHECK(n == WIRE_PAGE);
    CHECK(stream_open(&r, path, NULL, &e) == 0);
    CHECK(stream_skim(r, &f, &at, &e) == 1);
    CHECK(!strcmp(f.name, "m.q_proj") && f.role == ROLE_WEIGHT && !f.data);
    CHECK(frame_has_module(&f, "a") && frame_has_module(&f, "b"));
    CHECK(!frame_has_module(&f, "c") && !frame_has_module(&f, ""));
    CHECK(f.samples == 7 && f.sequence == 1 && f.block == 3 && f.group == 4);
    CHECK(f.scale_dtype == DT_BF16 && f.last && f.dims[0] == 100);
    CHECK(at % WIRE_ALIGN == 0);
    CHECK(stream_next(r, &f, &e) == 1 && f.len == 0 && f.samples == 0);
    CHECK(stream_next(r, &f, &e) == 0);
    CHECK(stream_next(r, &f, &e) == 0);
    CHECK(stream_payload(r, at, data, sizeof(data), &e) == 0 && data[2] == 3);
    CHECK(stream_payload(r, at + 1, data, sizeof(data), &e) == E_BUG);
    stream_close(r);
    close(fd);
}

static void test_every_prefix(const uint8_t *s, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        CHECK(read_all(s, k, false) == E_DATA);
        CHECK(read_all(s, k, true) == E_DATA);
    }
}

static void test_every_bit(uint8_t *s, size_t n)
{
    for (size_t i = 0; i < 8 * n; i++) {
        s[i / 8] ^= (uint8_t)(1 << i % 8);
        CHECK(read_all(s, n, false) == E_DATA);
        s[i / 8] ^= (uint8_t)(1 << i % 8);
    }
}

static void test_blocks_dropped_and_doubled(const uint8_t *s, size_t n)
{
    uint8_t *t = malloc(n + 64);

    for (size_t at = 0; at < n; at += 64) {
        memcpy(t, s, at);
        memcpy(t + at, s + at + 64, n - at - 64);
        CHECK(read_all(t, n - 64, false) == E_DATA);
        memcpy(t, s, at + 64);
        memcpy(t + at + 64, s + at, n - at);
        CHECK(read_all(t, n + 64, false) == E_DATA);
    }
    free(t);
}

static void test_concatenation(const uint8_t *s, size_t n)
{
    uint8_t *t = malloc(2 * n + 1);

    memcpy(t, s, n);
    memcpy(t + n, s, n);
    t[2 * n] = 'F';
    CHECK(read_all(t, 2 * n, false) == 4); /* names may repeat across streams */
    CHECK(read_all(t, 2 * n + 1, false) == E_DATA);
    for (size_t k = n + 1; k < 2 * n; k += 13)
        CHECK(read_all(t, k, false) == E_DATA);
    free(t);
}

/* Change one field of frame `nth`'s header, seal it, and say what happens. */
static int with_header(const uint8_t *s, size_t n, unsigned nth,
                       void (*change)(struct wire *))
{
    uint8_t *t = malloc(n);
    struct wire h;
    size_t at = 0;
    int rc;

    memcpy(t, s, n);
    for (;; nth--) {
        memcpy(&h, t + at, sizeof(h));
        if (!nth)
            break;
        at += sizeof(h) + h.meta_len + h.pad_len + h.payload_len;
    }
    change(&h);
    h.crc = crc32c(0, &h, offsetof(struct wire, crc));
    memcpy(t + at, &h, sizeof(h));
    rc = read_all(t, n, false);
    free(t);
    return rc;
}

#define CHANGES(X)                                                             \
    X(magic, h->magic[3] = '2')                                                \
    X(kind_zero, h->kind = 0)                                                  \
    X(kind_new, h->kind = 7)                                                   \
    X(kind_end, h->kind = FRAME_END)                                           \
    X(flags, h->flags = 1)                                                     \
    X(seq, h->seq++)                                                           \
    X(offset, h->offset += 64)                                                 \
    X(meta_long, h->meta_len = FRAME_META_MAX + 1)                             \
    X(meta_huge, h->meta_len = UINT32_MAX)                                     \
    X(pad_more, h->pad_len += 64)                                              \
    X(pad_huge, h->pad_len = UINT32_MAX)                                       \
    X(payload_more, h->payload_len++)                                          \
    X(payload_limit, h->payload_len = WIRE_PAYLOAD_MAX)                        \
    X(payload_beyond, h->payload_len = WIRE_PAYLOAD_MAX + 1)                   \
    X(payload_huge, h->payload_len = UINT64_MAX)                               \
    X(payload_hash, h->payload_hash++)                                         \
    X(meta_crc, h->meta_crc++)                                                 \
    X(reserved_0, h->reserved[0] = 1)                                          \
    X(reserved_1, h->reserved[1] = 1u << 31)
#define CHANGE(name, what)                                                     \
    static void change_##name(struct wire *h)                                  \
    {                                                                          \
        what;                                                                  \
    }
CHANGES(CHANGE)
#define TRY(name, what)                                                        \
    for (unsigned i = 0; i < 4; i++)                                           \
        CHECK(with_header(s, n, i, change_##name) == E_DATA ||                 \
              (i == 3 && change_##name == change_kind_end));

static void test_header_fields(const uint8_t *s, size_t n)
{
    CHANGES(TRY)
}

/* A stream of one TENSOR frame made of this meta; what does a reader say? */
static int with_meta(unsigned kind, const void *meta, size_t meta_len,
                     size_t payload_len)
{
    static const char head[] = "{\"format\":\"FTS1\"}";
    size_t cap = 4 * WIRE_PAGE + meta_len + payload_len, at = 0, seq = 0;
    uint8_t *s = calloc(1, cap);
    struct wire_end end = { 0 };
    int rc;

    for (int i = 0; i < 3; i++) {
        struct wire h = { .kind = (uint16_t)(i == 1 ? kind :
                                             i      ? 6 :
                                                      1),
                          .seq = seq++,
                          .offset = at };
        const void *m = i == 1 ? meta : i ? (void *)&end : (void *)head;

        h.meta_len = (uint32_t)(i == 1 ? meta_len :
                                i      ? sizeof(end) :
                                         sizeof(head) - 1);
        h.payload_len = i == 1 ? payload_len : 0;
        h.pad_len =
            frame_padding(at + sizeof(h) + h.meta_len, h.payload_len, i == 2);
        h.meta_crc = crc32c(0, m, h.meta_len);
        h.payload_hash = XXH3_64bits(s + cap - h.payload_len, h.payload_len);
        frame_seal(&h);
        memcpy(s + at, &h, sizeof(h));
        memcpy(s + at + sizeof(h), m, h.meta_len);
        at += sizeof(h) + h.meta_len + h.pad_len + h.payload_len;
        end.frames++;
        end.tensors += i == 1 && (kind & 0x7fff) == FRAME_TENSOR;
        end.payload += h.payload_len;
        if (!(kind & FRAME_ANCILLARY) || i != 1)
            end.content = frame_content(end.content, &h);
    }
    rc = read_all(s, at, false);
    free(s);
    return rc;
}

struct meta {
    uint16_t role, dtype;
    uint8_t ndim, zero;
    uint16_t name_len;
    uint64_t dims[9];
    uint8_t rest[FRAME_META_MAX];
};

static struct meta m;

/* role weight, U8, `ndim` dims of 1 (the first n), a name of name_len 'a' */
static size_t build(int ndim, uint64_t n, size_t name_len)
{
    uint8_t *p = (uint8_t *)m.dims;

    m.role = ROLE_WEIGHT;
    m.dtype = DT_U8;
    m.ndim = (uint8_t)ndim;
    m.zero = 0;
    m.name_len = (uint16_t)name_len;
    for (int i = 0; i < ndim; i++)
        m.dims[i] = i ? 1 : n;
    memset(p + 8 * ndim, 'a', name_len);
    return 8 + 8 * (size_t)ndim + name_len;
}

static size_t add_entry(size_t at, uint16_t tag, uint16_t len, const void *v)
{
    uint8_t *p = (uint8_t *)&m + at;

    memcpy(p, &tag, 2);
    memcpy(p + 2, &len, 2);
    memcpy(p + 4, v, len);
    return at + 4 + len;
}

static void test_limits(void)
{
    size_t n;

    CHECK(with_meta(2, &m, build(8, 4, 1), 4) == 1);
    CHECK(with_meta(2, &m, build(9, 4, 1), 4) == E_DATA);
    CHECK(with_meta(2, &m, build(1, 4, 0), 4) == E_DATA);
    CHECK(with_meta(2, &m, build(1, 4, 512), 4) == 1);
    CHECK(with_meta(2, &m, build(1, 4, 513), 4) == E_DATA);
    CHECK(with_meta(2, &m, build(1, 4, 1), 3) == E_DATA);
    CHECK(with_meta(2, &m, build(1, 4, 1), 5) == E_DATA);
    CHECK(with_meta(2, &m, build(1, 4, 1) - 1, 4) == E_DATA);
    CHECK(with_meta(2, &m, 7, 4) == E_DATA);
    n = build(2, 0, 1);
    m.dims[1] = WIRE_DIM_MAX;
    CHECK(with_meta(2, &m, n, 0) == 1);
    m.dims[1]++;
    CHECK(with_meta(2, &m, n, 0) == E_DATA);
    n = build(2, WIRE_DIM_MAX, 1); /* 2^80 bytes are not 2^16 */
    m.dims[1] = WIRE_DIM_MAX;
    CHECK(with_meta(2, &m, n, 0) == E_DATA);
    n = build(2, 1ull << 32, 1);
    m.dims[1] = 1ull << 32; /* 2^64 is not 0 */
    CHECK(with_meta(2, &m, n, 0) == E_DATA);
    n = build(1, 3, 1);
    m.dtype = DT_U4; /* a byte and a half */
    CHECK(with_meta(2, &m, n, 1) == E_DATA);
    CHECK(with_meta(2, &m, n, 2) == E_DATA);
    n = build(1, WIRE_NOTE_MAX, 1);
    m.role = ROLE_NOTE;
    CHECK(with_meta(2, &m, n, WIRE_NOTE_MAX) == 1);
    m.dims[0]++;
    CHECK(with_meta(2, &m, n, WIRE_NOTE_MAX + 1) == E_DATA);
}

static void test_unknown(void)
{
    size_t n = build(1, 4, 1);

    m.role = ROLE_COUNT;
    CHECK(with_meta(2, &m, n, 4) == E_DATA && strstr(e.msg, "newer"));
    CHECK(with_meta(2 | FRAME_ANCILLARY, &m, n, 4) == 0);
    build(1, 4, 1);
    m.role = 0;
    CHECK(with_meta(2, &m, n, 4) == E_DATA);
    build(1, 4, 1);
    m.dtype = DT_COUNT;
    CHECK(with_meta(2, &m, n, 4) == E_DATA && strstr(e.msg, "newer"));
    m.dtype = 0;
    CHECK(with_meta(2, &m, n, 4) == E_DATA);
    build(1, 4, 1);
    m.zero = 1;
    CHECK(with_meta(2, &m, n, 4) == E_DATA && strstr(e.msg, "newer"));
    n = build(1, 4, 1);
    CHECK(with_meta(9, &m, n, 4) == E_DATA && strstr(e.msg, "newer"));
    CHECK(with_meta(9 | FRAME_ANCILLARY, "what?", 5, 4) == 0);
    CHECK(with_meta(FRAME_INDEX, "any", 3, 4) == 0);
    CHECK(with_meta(FRAME_HEAD, "{}", 2, 0) == E_DATA);
    CHECK(with_meta(FRAME_ERROR, "\x4b\0\0\0hm", 6, 0) == E_TEMP);
    CHECK(!strcmp(e.msg, "hm"));
    CHECK(with_meta(FRAME_ERROR, "\x01\0\0\0hm", 6, 0) == E_DATA);
    CHECK(with_meta(FRAME_ERROR, "\x4b\0\0", 3, 0) == E_DATA);
}

static void test_entries(void)
{
    static const uint64_t one = 1, zero = 0;
    static const struct loan loan = { .lent = 1 };
    size_t n = build(1, 4, 1);

    CHECK(with_meta(2, &m, add_entry(n, TAG_SAMPLES, 8, &one), 4) == 1);
    CHECK(with_meta(2, &m, add_entry(n, TAG_SAMPLES, 8, &zero), 4) == E_DATA);
    CHECK(with_meta(2, &m, add_entry(n, TAG_SAMPLES, 7, &one), 4) == E_DATA);
    CHECK(with_meta(2, &m, add_entry(n, TAG_SAMPLES, 8, &one) - 1, 4) ==
          E_DATA);
    CHECK(with_meta(2, &m, n + 3, 4) == E_DATA);
    CHECK(with_meta(2, &m, add_entry(n, 99, 8, &one), 4) == E_DATA);
    CHECK(strstr(e.msg, "newer"));
    CHECK(with_meta(2, &m, add_entry(n, 99 | 0x8000, 8, &one), 4) == 1);
    CHECK(with_meta(2, &m, add_entry(n, 0, 8, &one), 4) == E_DATA);
    CHECK(with_meta(2, &m, add_entry(n, TAG_LAST, 1, &one), 4) == E_DATA);
    CHECK(with_meta(2, &m, add_entry(n, TAG_MODULES, 3, "a\nb"), 4) == 1);
    CHECK(with_meta(2, &m, add_entry(n, TAG_MODULES, 2, "a\n"), 4) == E_DATA);
    CHECK(with_meta(2, &m, add_entry(n, TAG_MODULES, 2, "\na"), 4) == E_DATA);
    CHECK(with_meta(2, &m, add_entry(n, TAG_MODULES, 2, "a\r"), 4) == E_DATA);
    CHECK(with_meta(2, &m, add_entry(n, TAG_MODULES, 0, ""), 4) == E_DATA);
    CHECK(with_meta(2, &m, add_entry(n, TAG_REF_PATH, 1, "a"), 4) == E_DATA);
    CHECK(with_meta(FRAME_REF, &m, n, 0) == E_DATA);
    CHECK(with_meta(FRAME_LOAN, &m, n, 0) == E_DATA);
    CHECK(strstr(e.msg, "without its place"));
    CHECK(with_meta(2, &m, add_entry(n, TAG_LOAN, sizeof(loan), &loan), 4) ==
          E_DATA);
    CHECK(strstr(e.msg, "loan in a tensor"));
    /* a file has none */
    CHECK(with_meta(FRAME_LOAN, &m, add_entry(n, TAG_LOAN, sizeof(loan), &loan),
                    0) == E_DATA);
    CHECK(strstr(e.msg, "another process lends"));
    CHECK(with_meta(FRAME_LOAN, &m,
                    add_entry(n, TAG_LOAN, sizeof(loan) - 1, &loan),
                    0) == E_DATA);
    CHECK(strstr(e.msg, "malformed"));
    n = add_entry(n, TAG_GROUP, 4, &one);
    CHECK(with_meta(2, &m, n, 4) == 1);
    CHECK(with_meta(2, &m, add_entry(n, TAG_GROUP, 4, &one), 4) == E_DATA);
    CHECK(with_meta(2, &m, add_entry(n, TAG_BLOCK, 4, &one), 4) == E_DATA);
}

static void test_names(void)
{
    static const char *const good[] = { "a", "\xc3\xa9", "a/b",
                                        "\xf0\x9f\x98\x80" };
    static const char *const bad[] = { "a\n",      "\x7f",         "\xff",
                                       "\xc0\xaf", "\xed\xa0\x80", "\xc2\x80",
                                       "\xe2\x82" };
    size_t n;

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        n = build(1, 4, strlen(good[i]));
        memcpy(m.dims + 1, good[i], strlen(good[i]));
        CHECK(with_meta(2, &m, n, 4) == 1);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        n = build(1, 4, strlen(bad[i]));
        memcpy(m.dims + 1, bad[i], strlen(bad[i]));
        CHECK(with_meta(2, &m, n, 4) == E_DATA);
    }
    n = build(1, 4, 3);
    memcpy(m.dims + 1, "a\0b", 3);
    CHECK(with_meta(2, &m, n, 4) == E_DATA);
}

static void test_roles(void)
{
    CHECK(role_parse("hessian") == ROLE_HESSIAN && role_parse("?") == 0);
    for (int r = 1; r < ROLE_COUNT; r++)
        CHECK(role_parse(role_name((enum role)r)) == (enum role)r);
    CHECK(!strcmp(role_name(ROLE_COUNT), "?"));
}

int main(void)
{
    size_t n;
    uint8_t *s = sample_stream(&n);

    test_round_trip(s, n);
    CHECK(read_all(s, n, false) == 2);
    test_every_prefix(s, n);
    test_every_bit(s, n);
    test_blocks_dropped_and_doubled(s, n);
    test_concatenation(s, n);
    test_header_fields(s, n);
    test_limits();
    test_unknown();
    test_entries();
    test_names();
    test_roles();
    free(s);
    return 0;
}
