/* decode.c - see decode.h.
 *
 * A token's text passes through the file's decoder: the ByteLevel alphabet
 * back to bytes, or Replace, ByteFallback, Fuse and Strip, or Metaspace.
 * Bytes that are not UTF-8 become U+FFFD as in the package: one for each
 * maximal part of a character (ByteLevel), one for each byte of a run
 * (ByteFallback). */
#include "tokenizer/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/normalize.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"
#include "tokenizer/vocab.h"

enum { ALPHABET = 324, REPLACES = 4, ID_MAX = 1 << 24 };

static const char where[] = "decoder";
static const char unknown[] = "\xef\xbf\xbd"; /* U+FFFD */

struct piece {
    const char *text;
    uint32_t len;
    bool there, special;
};

struct replace {
    char *from, *to;
};

struct decoder {
    struct vocab vocab;
    struct piece *piece; /* indexed by id */
    size_t pieces;
    char **added; /* texts of added tokens */
    int32_t *added_id;
    size_t n_added;
    bool specials, byte_level, byte_fallback, fuses, spaces;
    struct replace replace[REPLACES];
    int replaces;
    char *strip; /* Strip: remove up to `stripped` of it at the start */
    int64_t stripped;
    char *metaspace;
    bool metaspace_first; /* drop the one of the first token */
    int16_t byte_of[ALPHABET];
    /* the text at work */
    bool begun; /* an id of the current text has been added */
    int64_t to_strip;
    struct text held; /* bytes whose text is not determined yet */
};

int text_add(struct text *t, const char *p, size_t n, struct err *e)
{
    if (n > t->cap - t->len) {
        size_t cap = t->cap * 2 + n + 64;

        if (mem_grow(&t->p, cap, where, e) < 0)
            return e->code;
        t->cap = cap;
    }
    if (n)
        memcpy(t->p + t->len, p, n);
    t->len += n;
    return 0;
}

/* ---- UTF-8 ---- */

/* Length of the first character of p[n]; 0: incomplete; negative: minus the
 * length of an invalid part. */
static int first_char(const unsigned char *p, size_t n)
{
    unsigned low = 0x80, high = 0xbf;
    int len = *p < 0x80 ? 1 :
              *p < 0xc2 ? 0 :
              *p < 0xe0 ? 2 :
              *p < 0xf0 ? 3 :
              *p < 0xf5 ? 4 :
                          0;

    if (!len)
        return -1;
    low = *p == 0xe0 ? 0xa0 : *p == 0xf0 ? 0x90 : low;
    high = *p == 0xed ? 0x9f : *p == 0xf4 ? 0x8f : high;
    for (int i = 1; i < len; i++, low = 0x80, high = 0xbf) {
        if ((size_t)i == n)
            return 0;
        if (p[i] < low || p[i] > high)
            return -i;
    }
    return len;
}

/* Append the complete characters of `held`, U+FFFD for invalid parts; at the
 * end also for an incomplete one. */
static int settle_chars(struct decoder *d, bool end, struct text *out,
                        struct err *e)
{
    const unsigned char *p = (const unsigned char *)d->held.p;
    size_t n = d->held.len, at = 0;
    int k = 1;

    while (at < n && (k = first_char(p + at, n - at)) != 0) {
        if ((k > 0 ? text_add(out, (const char *)p + at, (size_t)k, e) :
                     text_add(out, unknown, 3, e)) < 0)
            return e->code;
        at += (size_t)abs(k);
    }
    if (end && at < n) {
        at = n;
        if (text_add(out, unknown, 3, e) < 0)
            return e->code;
    }
    if (at) /* held.p may be NULL */
        memmove(d->held.p, d->held.p + at, n - at);
    d->held.len = n - at;
    return 0;
}

/* ---- texts without the ByteLevel alphabet ---- */

/* Append, without what Strip removes from the start of the text. */
static int put(struct decoder *d, const char *p, size_t n, struct text *out,
               struct err *e)
{
    size_t k = d->strip ? strlen(d->strip) : 0;

    while (k && d->to_strip && n >= k && !memcmp(p, d->strip, k)) {
        p += k;
        n -= k;
        d->to_strip--;
    }
    if (n)
        d->to_strip = 0;
    return text_add(out, p, n, e);
}

/* End of a run of byte tokens: append it as text. */
static int settle_run(struct decoder *d, struct text *out, struct err *e)
{
    size_t n = d->held.len;
    bool valid = unicode_check(d->held.p ? d->held.p : "", n) == n;

    d->held.len = 0;
    if (valid)
        return n ? put(d, d->held.p, n, out, e) : 0;
    for (size_t i = 0; i < n; i++)
        if (put(d, unknown, 3, out, e) < 0)
            return e->code;
    return 0;
}

/* Whether the token is a byte "<0x0A>". */
static bool is_byte(const char *p, size_t n, char *byte)
{
    char hex[3] = { 0 }, *end;

    if (n != 6 || memcmp(p, "<0x", 3) || p[5] != '>')
        return false;
    memcpy(hex, p + 3, 2);
    *byte = (char)strtoul(hex, &end, 16);
    return end == hex + 2 && hex[0] != '+' && hex[0] != '-' && hex[0] != ' ';
}

/* Replace `from` by `to` throughout *t. */
static int replace_all(struct text *t, const char *from, const char *to,
                       struct err *e)
{
    struct text made = { 0 };
    size_t k = strlen(from), at = 0;
    int rc = 0;

    while (!rc && at < t->len)
        if (t->len - at >= k && !memcmp(t->p + at, from, k)) {
            rc = text_add(&made, to, strlen(to), e);
            at += k;
        } else {
            rc = text_add(&made, t->p + at++, 1, e);
        }
    free(t->p);
    *t = made;
    return rc;
}

static int add_piece(struct decoder *d, const struct piece *p, struct text *out,
                     struct err *e)
{
    struct text t = { 0 };
    char byte;
    int rc;

    if (d->byte_fallback && is_byte(p->text, p->len, &byte))
        return text_add(&d->held, &byte, 1, e);
    rc = text_add(&t, p->text, p->len, e);
    if (!rc && d->metaspace)
        rc = replace_all(&t, d->metaspace,
                         !d->begun && d->metaspace_first ? "" : " ", e);
    for (int i = 0; !rc && i < d->replaces; i++)
        rc = replace_all(&t, d->replace[i].from, d->replace[i].to, e);
    if (!rc)
        rc = settle_run(d, out, e);
    if (!rc && d->spaces && d->begun)
        rc = text_add(out, " ", 1, e);
    if (!rc)
        rc = put(d, t.p, t.len, out, e);
    free(t.p);
    return rc;
}

/* ---- the ByteLevel alphabet ---- */

static int add_bytes(struct decoder *d, const struct piece *p, struct text *out,
                     struct err *e)
{
    size_t before = d->held.len, k;

    for (size_t at = 0; at < p->len; at += k) {
        uint32_t cp = unicode_decode(p->text + at, &k);
        char byte;

        if (cp >= ALPHABET || d->byte_of[cp] < 0) { /* not ByteLevel: as is */
            d->held.len = before;
            if (text_add(&d->held, p->text, p->len, e) < 0)
                return e->code;
            break;
        }
        byte = (char)d->byte_of[cp];
        if (text_add(&d->held, &byte, 1, e) < 0)
            return e->code;
    }
    return settle_chars(d, false, out, e);
}

/* ---- ids ---- */

int decoder_add(struct decoder *d, int32_t id, struct text *out, struct err *e)
{
    const struct piece *p;
    int rc;

    if (id < 0 || (size_t)id >= d->pieces || !d->piece[id].there)
        return 0;
    p = &d->piece[id];
    if (p->special && !d->specials)
        return 0;
    if (!d->begun)
        d->to_strip = d->stripped;
    rc = d->byte_level ? add_bytes(d, p, out, e) : add_piece(d, p, out, e);
    d->begun = true;
    return rc;
}

int decoder_end(struct decoder *d, struct text *out, struct err *e)
{
    int rc =
        d->byte_level ? settle_chars(d, true, out, e) : settle_run(d, out, e);

    d->begun = false;
    d->held.len = 0;
    return rc;
}

int32_t decoder_id(const struct decoder *d, const char *token)
{
    for (size_t i = 0; i < d->n_added; i++)
        if (!strcmp(d->added[i], token))
            return d->added_id[i];
    return vocab_find(&d->vocab, token, strlen(token));
}

/* ---- from tokenizer.json ---- */

static int copy_text(char **to, const struct json *v, const char *what,
                     const char *name, struct err *e)
{
    const char *s;

    if (!json_string(v, &s))
        return err_set(e, E_DATA, "%s: decoder: no %s", what, name);
    *to = mem_text(s, strlen(s), where, e);
    return *to ? 0 : e->code;
}

static int refuse(const char *what, const char *type, struct err *e)
{
    return err_set(e, E_CONFIG, "%s: decoder '%.64s' is not supported", what,
                   type);
}

static int read_replace(struct decoder *d, const struct json *v,
                        const char *what, struct err *e)
{
    struct replace *r = &d->replace[d->replaces];
    const struct json *from = json_get(json_get(v, "pattern"), "String");
    const char *s;

    if (d->replaces == REPLACES || d->fuses || !json_string(from, &s) || !*s)
        return refuse(what, "Replace", e);
    d->replaces++;
    return copy_text(&r->from, from, what, "pattern", e) < 0 ?
               e->code :
               copy_text(&r->to, json_get(v, "content"), what, "content", e);
}

static int read_strip(struct decoder *d, const struct json *v, const char *what,
                      struct err *e)
{
    int64_t start, stop;

    if (!json_int(json_get(v, "start"), &start) ||
        !json_int(json_get(v, "stop"), &stop) || start < 0)
        return err_set(e, E_DATA, "%s: decoder: Strip without numbers", what);
    if (stop || !d->fuses || d->strip)
        return refuse(what, "Strip", e);
    d->stripped = start;
    return copy_text(&d->strip, json_get(v, "content"), what, "content", e);
}

static int read_metaspace(struct decoder *d, const struct json *v,
                          const char *what, struct err *e)
{
    const char *scheme = "always", *text;
    bool prefix = true;

    if (!json_string(json_get(v, "prepend_scheme"), &scheme) &&
        json_bool(json_get(v, "add_prefix_space"), &prefix) && !prefix)
        scheme = "never";
    if (json_string(json_get(v, "replacement"), &text) && !*text)
        return refuse(what, "Metaspace", e);
    d->metaspace_first = strcmp(scheme, "never") != 0;
    return copy_text(&d->metaspace, json_get(v, "replacement"), what,
                     "replacement", e);
}

static int read_step(struct decoder *d, const struct json *v, const char *what,
                     struct err *e)
{
    const struct json *list = json_get(v, "decoders");
    const char *type;
    int rc = 0;

    if (!json_string(json_get(v, "type"), &type))
        return err_set(e, E_DATA, "%s: decoder has no type", what);
    if (!strcmp(type, "Sequence")) {
        for (const struct json *i = json_first(list); i && !rc;
             i = json_after(i))
            rc = read_step(d, i, what, e);
        return rc;
    }
    if (!strcmp(type, "ByteLevel"))
        d->byte_level = true;
    else if (!strcmp(type, "ByteFallback") && !d->fuses)
        d->byte_fallback = true;
    else if (!strcmp(type, "Fuse"))
        d->fuses = true;
    else if (!strcmp(type, "Replace"))
        return read_replace(d, v, what, e);
    else if (!strcmp(type, "Strip"))
        return read_strip(d, v, what, e);
    else if (!strcmp(type, "Metaspace"))
        return read_metaspace(d, v, what, e);
    else
        return refuse(what, type, e);
    return 0;
}

static int set_piece(struct decoder *d, int64_t id, const char *text,
                     bool special, const char *what, struct err *e)
{
    size_t n = (size_t)id + 1;

    if (id >= ID_MAX)
        return err_set(e, E_DATA,
                       "%s: the id of token '%.200s' is %lld, at most %d are "
                       "allowed",
                       what, text, (long long)id, ID_MAX - 1);
    if (n > d->pieces) {
        size_t cap = n + n / 2;

        if (mem_grow(&d->piece, cap * sizeof(*d->piece), where, e) < 0)
            return e->code;
        memset(d->piece + d->pieces, 0, (cap - d->pieces) * sizeof(*d->piece));
        d->pieces = cap;
    }
    d->piece[id] =
        (struct piece){ text, (uint32_t)strlen(text), true, special };
    return 0;
}

/* Text of an added token: normalized, if it is matched in normalized text. */
static int added_text(struct decoder *d, const struct json *token,
                      const char *content, struct normalizer *n, struct err *e)
{
    const char *text = content;
    size_t len = strlen(content);
    bool normalized = false;

    (void)!json_bool(json_get(token, "normalized"), &normalized);
    if (normalized && normalizer_apply(n, content, len, &text, &len, e) < 0)
        return e->code;
    d->added[d->n_added] = mem_text(text, len, where, e);
    return d->added[d->n_added] ? 0 : e->code;
}

/* Ids as in tokenizer/added.h. */
static int read_added(struct decoder *d, const struct json *list,
                      struct normalizer *normalizer, const char *what,
                      struct err *e)
{
    size_t n = json_count(list);
    int64_t next = (int64_t)d->vocab.count;

    d->added = mem_zero(n + 1, sizeof(*d->added), where, e);
    d->added_id = mem_zero(n + 1, sizeof(*d->added_id), where, e);
    if (!d->added || !d->added_id)
        return e->code;
    for (const struct json *i = json_first(list); i; i = json_after(i)) {
        const char *content;
        bool special = false;
        int64_t id;

        if (!json_string(json_get(i, "content"), &content))
            return err_set(e, E_DATA, "%s: an added token has no content",
                           what);
        (void)!json_bool(json_get(i, "special"), &special);
        if (!*content)
            continue;
        id = decoder_id(d, content); /* in the vocabulary, or added before */
        if (id < 0)
            id = next++;
        if (added_text(d, i, content, normalizer, e) < 0)
            return e->code;
        d->added_id[d->n_added] = (int32_t)id;
        if (set_piece(d, id, d->added[d->n_added++], special, what, e) < 0)
            return e->code;
    }
    return 0;
}

static int load(struct decoder *d, const struct json *root, const char *what,
                struct err *e)
{
    const struct json *v = json_get(root, "decoder");
    struct normalizer *n;
    int rc;

    if (v && json_type(v) != JSON_NULL) {
        if (read_step(d, v, what, e) < 0)
            return e->code;
    } else {
        d->spaces = true;
    }
    if (vocab_init(&d->vocab, json_get(json_get(root, "model"), "vocab"), what,
                   e) < 0)
        return e->code;
    for (size_t i = 0; i < d->vocab.count; i++)
        if (set_piece(d, d->vocab.token[i].id, d->vocab.token[i].text, false,
                      what, e) < 0)
            return e->code;
    if (normalizer_open(&n, json_get(root, "normalizer"), what, e) < 0)
        return e->code;
    rc = read_added(d, json_get(root, "added_tokens"), n, what, e);
    normalizer_close(n);
    return rc;
}

int decoder_parse(struct decoder **out, const char *json, size_t len,
                  const char *what, bool specials, struct err *e)
{
    struct decoder *d = mem_zero(1, sizeof(*d), where, e);
    struct json_doc *doc = NULL;
    int rc = d ? json_parse(&doc, json, len, what, e) : e->code;

    *out = NULL;
    if (rc >= 0) {
        memset(d->byte_of, -1, sizeof(d->byte_of));
        for (int b = 0; b < 256; b++)
            d->byte_of[unicode_byte_char((unsigned char)b)] = (int16_t)b;
        d->specials = specials;
        rc = load(d, json_root(doc), what, e);
    }
    json_free(doc);
    if (rc < 0)
        decoder_close(d);
    else
        *out = d;
    return rc;
}

int decoder_open(struct decoder **out, const char *path, bool specials,
                 struct err *e)
{
    char *text, what[TOKENIZER_WHAT];
    size_t len;
    int rc;

    *out = NULL;
    if ((rc = tokenizer_text(path, &text, &len, what, e)) < 0)
        return rc;
    rc = decoder_parse(out, text, len, what, specials, e);
    free(text);
    return rc;
}

void decoder_close(struct decoder *d)
{
    if (!d)
        return;
    vocab_release(&d->vocab);
    for (size_t i = 0; i < d->n_added; i++)
        free(d->added[i]);
    free(d->added);
    free(d->added_id);
    free(d->piece);
    for (int i = 0; i < d->replaces; i++) {
        free(d->replace[i].from);
        free(d->replace[i].to);
    }
    free(d->strip);
    free(d->metaspace);
    free(d->held.p);
    free(d);
}
