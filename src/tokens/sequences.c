/* sequences.c - see sequences.h: text and JSON lines. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"
#include "common/io/npy.h"
#include "tokens/npy.h"
#include "tokens/sequences.h"
#include "tokens/upstream.h"
#include "tokenizer/unicode.h"

enum { CHUNK = 1 << 20 };

/* Parameters of cutting text into sequences. */
struct cutter {
    struct tokenizer *tokenizer;
    const struct token_ids *prefix, *suffix;
    size_t body, need; /* ids of text per sequence, and for all sequences */
    bool failed;       /* opening failed: the error is not the input's */
};

/* Prefix an error about the input with its name. */
static int blame(const struct input *in, struct err *e)
{
    return e->code == E_USAGE || e->code == E_CONFIG ?
               e->code :
               err_prefix(e, "'%s'", in->name);
}

/* ---- cutting a stream of ids ---- */

static int cutter_open(struct cutter *c, const struct sequences_params *p,
                       struct err *e)
{
    size_t special;

    if (tokenizer_open(&c->tokenizer, p->model, e) < 0) {
        c->failed = true;
        return e->code;
    }
    c->prefix = tokenizer_prefix(c->tokenizer);
    c->suffix = tokenizer_suffix(c->tokenizer);
    if (p->whole)
        return 0;
    special = c->prefix->count + c->suffix->count;
    if ((size_t)p->seqlen <= special)
        return err_set(e, E_USAGE,
                       "--seqlen %lld leaves no room beside %zu special "
                       "tokens",
                       (long long)p->seqlen, special);
    c->body = (size_t)p->seqlen - special;
    if (size_mul(c->body, (size_t)p->n, &c->need))
        return err_set(e, E_USAGE, "--sequences times --seqlen is too large");
    return 0;
}

static int check_ids(const struct sequences *s,
                     const struct sequences_params *p, size_t from, bool text,
                     struct err *e)
{
    for (size_t i = from; p->vocab_size && i < s->ids.count; i++)
        if (s->ids.id[i] >= p->vocab_size)
            return err_set(e, text ? E_CONFIG : E_DATA,
                           "id %d is not below the model's vocab_size %lld%s",
                           (int)s->ids.id[i], (long long)p->vocab_size,
                           text ? ": wrong tokenizer" : "");
    return 0;
}

static int add_whole(struct sequences *s, const struct cutter *c,
                     const int32_t *id, size_t n, struct err *e)
{
    if (token_ids_add(&s->ids, c->prefix->id, c->prefix->count, e) < 0 ||
        token_ids_add(&s->ids, id, n, e) < 0 ||
        token_ids_add(&s->ids, c->suffix->id, c->suffix->count, e) < 0)
        return e->code;
    return sequences_end(s, e);
}

/* Cut the first c->need ids into sequences. */
static int add_cut(struct sequences *s, const struct cutter *c,
                   const struct token_ids *ids, struct err *e)
{
    size_t n = ids->count < c->need ? ids->count : c->need;

    if (n < c->body)
        return err_set(e, E_DATA,
                       "the text gives %zu ids, and one sequence takes %zu", n,
                       c->body);
    for (size_t at = 0; n - at >= c->body; at += c->body)
        if (add_whole(s, c, ids->id + at, c->body, e) < 0)
            return e->code;
    return 0;
}

/* ---- plain text ---- */

struct text {
    struct input *in;
    bool lines;   /* convert line ends to LF */
    bool cr;      /* the last character was a CR */
    int64_t skip; /* characters still to skip */
    char *data;
    size_t len, cap;
    bool ended;
};

/* Number of bytes of the next *skip characters of p[n]; counts *skip down. */
static size_t skip_bytes(const char *p, size_t n, int64_t *skip)
{
    size_t i = 0;

    for (; i < n && *skip; (*skip)--)
        do
            i++;
        while (i < n && ((unsigned char)p[i] & 0xc0) == 0x80);
    return i;
}

/* Convert line ends in p[n] in place; returns the new length. */
static size_t unify_lines(struct text *t, char *p, size_t n)
{
    size_t k = 0;

    for (size_t i = 0; i < n; i++) {
        bool cr = p[i] == '\r';

        if (p[i] != '\n' || !t->cr)
            p[k++] = cr ? '\n' : p[i];
        t->cr = cr;
    }
    return k;
}

/* Append the input's window to the text, up to the last whole UTF-8
 * character. */
static int take_chunk(struct text *t, struct err *e)
{
    struct input *in = t->in;
    size_t n, used, k;

    if (input_fill(in, CHUNK, e) < 0)
        return e->code;
    used = n = unicode_check(in->data, in->len);
    if (n < in->len && (in->ended || in->len - n > 3))
        return err_set(e, E_DATA, "byte %llu is not valid UTF-8",
                       (unsigned long long)(in->at + n));
    if (t->len + n > t->cap) {
        size_t cap = t->len + n + (t->len + n) / 2;

        if (mem_grow(&t->data, cap, "text", e) < 0)
            return e->code;
        t->cap = cap;
    }
    if (t->lines)
        n = unify_lines(t, in->data, n);
    k = skip_bytes(in->data, n, &t->skip);
    if (n > k)
        memcpy(t->data + t->len, in->data + k, n - k);
    t->len += n - k;
    input_drop(in, used);
    t->ended = in->ended && !in->len;
    return 0;
}

static int text_fill(struct text *t, size_t n, struct err *e)
{
    while (t->len < n && !t->ended)
        if (take_chunk(t, e) < 0)
            return e->code;
    return 0;
}

static int text_whole(struct sequences *s, struct cutter *c, struct text *t,
                      struct err *e)
{
    struct token_ids ids = { 0 };
    int rc = text_fill(t, SIZE_MAX, e);

    if (!rc)
        rc = tokenizer_encode(c->tokenizer, t->data, t->len, &ids, e);
    if (!rc)
        rc = add_whole(s, c, ids.id, ids.count, e);
    free(ids.id);
    return rc;
}

/* Encode a prefix of the text that is likely long enough.  If too few of its
 * ids are certain (ids near its end may change with more text), encode a longer
 * one. */
static int text_cut(struct sequences *s, struct cutter *c, struct text *t,
                    struct err *e)
{
    struct token_ids ids = { 0 };
    size_t take = c->need < SIZE_MAX / 8 ? 4 * c->need + CHUNK / 16 : SIZE_MAX;
    int rc;

    for (;;) {
        size_t n, settled;

        rc = text_fill(t, take, e);
        n = t->len < take ? t->len : take;
        while (n && n < t->len && ((unsigned char)t->data[n] & 0xc0) == 0x80)
            n--;
        ids.count = 0;
        if (!rc)
            rc = tokenizer_encode_start(c->tokenizer, t->data, n, &ids,
                                        &settled, e);
        if (rc || settled >= c->need || (t->ended && n == t->len))
            break;
        take = n < SIZE_MAX / 4 ? 2 * n + CHUNK / 16 : SIZE_MAX;
    }
    if (!rc)
        rc = add_cut(s, c, &ids, e);
    free(ids.id);
    return rc;
}

static int read_text(struct sequences *s, const struct sequences_params *p,
                     struct input *in, struct err *e)
{
    struct text t = { .in = in, .lines = !p->whole, .skip = p->skip_chars };
    struct cutter c = { 0 };
    int rc = cutter_open(&c, p, e);

    s->format = "text";
    if (!rc)
        rc = p->whole ? text_whole(s, &c, &t, e) : text_cut(s, &c, &t, e);
    if (!rc)
        rc = check_ids(s, p, 0, true, e);
    tokenizer_close(c.tokenizer);
    free(t.data);
    return rc < 0 && !c.failed ? blame(in, e) : rc;
}

/* ---- JSON lines ---- */

struct records {
    struct sequences *s;
    const struct sequences_params *p;
    struct cutter c; /* opened at the first text */
    struct token_ids ids;
    int fd; /* of the input */
    int64_t skip;
    enum { KIND_NONE, KIND_TEXT, KIND_IDS } kind;
};

static int record_text(struct records *r, const char *text, struct err *e)
{
    size_t k = skip_bytes(text, strlen(text), &r->skip);

    if (!r->c.tokenizer && cutter_open(&r->c, r->p, e) < 0)
        return e->code;
    if (tokenizer_encode(r->c.tokenizer, text + k, strlen(text + k), &r->ids,
                         e) < 0)
        return e->code;
    if (!r->p->whole)
        return r->ids.count >= r->c.need;
    if (add_whole(r->s, &r->c, r->ids.id, r->ids.count, e) < 0)
        return e->code;
    r->ids.count = 0;
    return 0;
}

static int record_ids(struct records *r, const struct json *list, struct err *e)
{
    size_t from = r->s->ids.count;

    r->ids.count = 0;
    if (json_type(list) != JSON_ARRAY || !json_count(list))
        return err_set(e, E_DATA, "'input_ids' is no list of ids");
    for (const struct json *i = json_first(list); i; i = json_after(i)) {
        int64_t n;
        int32_t id;

        if (!json_int(i, &n) || n < 0 || n > INT32_MAX)
            return err_set(e, E_DATA, "'input_ids' holds what is no id");
        id = (int32_t)n;
        if (token_ids_add(&r->ids, &id, 1, e) < 0)
            return e->code;
    }
    if (sequences_add(r->s, r->p, r->ids.id, r->ids.count, e) < 0 ||
        check_ids(r->s, r->p, from, false, e) < 0)
        return e->code;
    return !r->p->whole && r->s->count == (size_t)r->p->n;
}

/* Take a record.  1: there are enough sequences; 0: go on. */
static int record(struct records *r, const struct json *v, struct err *e)
{
    const struct json *ids = json_get(v, "input_ids");
    const char *text = NULL;
    bool has_text = json_string(json_get(v, "text"), &text);
    int kind = has_text ? KIND_TEXT : ids ? KIND_IDS : KIND_NONE;

    if (has_text && ids)
        return err_set(e, E_DATA, "both 'text' and 'input_ids' are there");
    if (!kind && upstream_error(v, r->fd, e) < 0)
        return e->code;
    if (!kind)
        return err_set(e, E_DATA,
                       json_get(v, "messages") ?
                           "'messages' must first be rendered to "
                           "'text' by the chat template: forge-text MODEL "
                           "FILE does" :
                           "neither 'text' nor 'input_ids'");
    if (r->kind && kind != (int)r->kind)
        return err_set(e, E_DATA,
                       "records with 'text' and with 'input_ids' "
                       "are mixed");
    r->kind = kind;
    r->s->format = kind == KIND_TEXT ? "jsonl text" : "jsonl ids";
    if (kind == KIND_IDS && r->p->skip_chars)
        return err_set(e, E_USAGE,
                       "--skip-chars counts characters of text, "
                       "and this input holds ids");
    return kind == KIND_TEXT ? record_text(r, text, e) : record_ids(r, ids, e);
}

/* Read until the window holds a whole line; its first `seen` bytes hold no
 * newline.  *len: the line's length; *next: the offset of the next line.  1; or
 * 0: the input is empty. */
static int next_line(struct input *in, size_t seen, size_t *len, size_t *next,
                     struct err *e)
{

    for (;;) {
        const char *end = in->len > seen ?
                              memchr(in->data + seen, '\n', in->len - seen) :
                              NULL;

        if (end) {
            *len = (size_t)(end - in->data);
            *next = *len + 1;
            return 1;
        }
        if (in->ended) {
            *len = *next = in->len;
            return in->len > 0;
        }
        seen = in->len;
        if (input_fill(in, in->len + CHUNK, e) < 0)
            return e->code;
    }
}

static bool is_blank(const char *p, size_t n)
{
    while (n && (*p == ' ' || *p == '\t' || *p == '\r'))
        p++, n--;
    return !n;
}

static int read_lines(struct records *r, struct input *in, struct err *e)
{
    size_t len, next, drop = 0;
    uint64_t number = 0;
    char what[48];
    int rc;

    for (;;) {
        struct json_doc *doc;

        input_drop(in, drop);
        rc = next_line(in, 0, &len, &next, e);
        if (rc <= 0)
            return rc;
        number++;
        drop = next;
        if (is_blank(in->data, len))
            continue;
        snprintf(what, sizeof(what), "record on line %llu",
                 (unsigned long long)number);
        if (json_parse(&doc, in->data, len, what, e) < 0)
            return e->code;
        rc = record(r, json_root(doc), e);
        json_free(doc);
        if (rc < 0 && !r->c.failed)
            err_prefix(e, "line %llu", (unsigned long long)number);
        if (rc)
            return rc < 0 ? rc : 0;
    }
}

static int read_jsonl(struct sequences *s, const struct sequences_params *p,
                      struct input *in, struct err *e)
{
    struct records r = { .s = s, .p = p, .fd = in->fd, .skip = p->skip_chars };
    int rc;

    s->format = "jsonl";
    if (in->len >= 3 && !memcmp(in->data, "\xef\xbb\xbf", 3))
        input_drop(in, 3);
    rc = read_lines(&r, in, e);
    if (!rc && !r.kind)
        rc = err_set(e, E_DATA, "no records");
    if (!rc && r.kind == KIND_TEXT && !p->whole)
        rc = add_cut(s, &r.c, &r.ids, e);
    if (!rc && r.kind == KIND_TEXT) /* records of ids are checked each */
        rc = check_ids(s, p, 0, true, e);
    tokenizer_close(r.c.tokenizer);
    free(r.ids.id);
    return rc < 0 && !r.c.failed ? blame(in, e) : rc;
}

/* ---- choosing the format ---- */

static bool named_jsonl(const char *name)
{
    static const char *const ends[] = { ".jsonl", ".ndjson" };
    size_t n = strlen(name);

    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        if (n >= strlen(ends[i]) &&
            !strcmp(name + n - strlen(ends[i]), ends[i]))
            return true;
    return false;
}

/* Whether a line that is no JSON was to be a record: '{', the '"' of a name, and
 * a record's member, as no string inside of JSON has it: there, quotes have a
 * backslash in front. */
static bool means_record(const char *line, size_t len)
{
    static const char *const names[] = { "\"text\"", "\"input_ids\"",
                                         "\"messages\"" };
    const char *end = line + len, *at = line + 1;

    while (at < end && is_blank(at, 1))
        at++;
    if (at == end || *at != '"')
        return false;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        size_t n = strlen(names[i]);

        for (const char *p = at;
             (p = memmem(p, (size_t)(end - p), names[i], n));) {
            p += n;
            while (p < end && is_blank(p, 1))
                p++;
            if (p < end && *p == ':')
                return true;
        }
    }
    return false;
}

/* JSON lines are recognised by the file's name, or by a first non-blank line
 * that is a JSON object, whatever its members, or was to be a record: one
 * without known members, or that is no JSON, is refused later, not read as
 * text. */
static int looks_like_jsonl(struct input *in, bool *yes, struct err *e)
{
    size_t at = in->len >= 3 && !memcmp(in->data, "\xef\xbb\xbf", 3) ? 3 : 0;
    size_t len, next;
    struct json_doc *doc;
    struct err why;

    *yes = named_jsonl(in->name);
    while (at < in->len && strchr(" \t\r\n", in->data[at]) && in->data[at])
        at++;
    if (*yes || at == in->len || in->data[at] != '{')
        return 0;
    if (next_line(in, at, &len, &next, e) < 0)
        return e->code;
    if (json_parse(&doc, in->data + at, len - at, "", &why) < 0) {
        *yes = means_record(in->data + at, len - at);
        return why.code == E_TEMP ? (*e = why, E_TEMP) : 0;
    }
    *yes = true;
    json_free(doc);
    return 0;
}

/* Compressed files and parquet are forge-text's to read. */
static int refuse_packed(const struct input *in, struct err *e)
{
    static const struct {
        const char *begin, *what;
    } kinds[] = { { "\x1f\x8b", "gzip" },
                  { "\x28\xb5\x2f\xfd", "zstd" },
                  { "\xfd"
                    "7zXZ",
                    "xz" },
                  { "PAR1", "parquet" } };

    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        size_t n = strlen(kinds[i].begin);

        if (in->len >= n && !memcmp(in->data, kinds[i].begin, n))
            return err_set(e, E_DATA, "is %s: forge-text MODEL FILE reads it",
                           kinds[i].what);
    }
    return 0;
}

int sequences_read(struct sequences *s, const struct sequences_params *p,
                   struct input *in, struct err *e)
{
    int format = p->format, rc;
    bool jsonl = false;

    *s = (struct sequences){ 0 };
    rc = input_fill(in, 16, e);
    if (!rc && format == FORMAT_AUTO)
        rc = refuse_packed(in, e);
    if (!rc && format == FORMAT_AUTO) {
        if (in->len >= sizeof(NPY_MAGIC) - 1 &&
            !memcmp(in->data, NPY_MAGIC, sizeof(NPY_MAGIC) - 1))
            format = FORMAT_NPY;
        else
            rc = looks_like_jsonl(in, &jsonl, e);
    }
    if (rc)
        return blame(in, e);
    if (format == FORMAT_NPY)
        return sequences_npy(s, p, in, e) < 0 ? blame(in, e) : 0;
    return jsonl || format == FORMAT_JSONL ? read_jsonl(s, p, in, e) :
                                             read_text(s, p, in, e);
}
