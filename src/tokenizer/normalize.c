/* normalize.c - see normalize.h: NFC by utf8proc, Prepend, Replace. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "tokenizer/normalize.h"
#include "tokenizer/split.h"
#include "tokenizer/unicode.h"

enum { STEPS_MAX = 16 };
/* A text of n bytes becomes GROWS n + ROOM at most: a chain of Replace can multiply
 * it in every step. */
enum { GROWS = 64, ROOM = 65536 };

struct step {
    enum { STEP_NFC, STEP_PREPEND, STEP_REPLACE } kind;
    char *content;
    size_t content_len;
    struct pattern *pattern;
};

struct buffer {
    char *text;
    size_t len, cap, most;
};

struct normalizer {
    struct step step[STEPS_MAX];
    int n_steps;
    struct buffer buf[2]; /* steps write to them alternately */
    int32_t *wide;        /* work memory of nfc_run() */
    size_t wide_cap;
};

static int append(struct buffer *b, const char *text, size_t len, struct err *e)
{
    size_t need;

    if (size_add(b->len, len, &need) || need > b->most)
        return err_set(e, E_DATA,
                       "the tokenizer's normalizers make a text longer than "
                       "%zu bytes",
                       b->most);
    if (need > b->cap) {
        size_t cap = need + need / 2 + 64;

        if (mem_grow(&b->text, cap, "normalizer", e) < 0)
            return e->code;
        b->cap = cap;
    }
    if (len)
        memcpy(b->text + b->len, text, len);
    b->len = need;
    return 0;
}

/* Append the NFC of a run of characters to b. */
static int nfc_run(struct normalizer *n, struct buffer *b, const char *text,
                   size_t len, struct err *e)
{
    const int how = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    utf8proc_ssize_t count;

    for (;;) {
        size_t bytes;

        count = utf8proc_decompose((const utf8proc_uint8_t *)text,
                                   (utf8proc_ssize_t)len, n->wide,
                                   (utf8proc_ssize_t)n->wide_cap, how);
        if (count < 0)
            return err_set(e, E_BUG, "NFC: %s", utf8proc_errmsg(count));
        if ((size_t)count <= n->wide_cap)
            break;
        if (size_mul((size_t)count + 64, sizeof(*n->wide), &bytes) ||
            mem_grow(&n->wide, bytes, "normalizer", e) < 0)
            return E_TEMP;
        n->wide_cap = (size_t)count + 64;
    }
    count = utf8proc_normalize_utf32(n->wide, count, how);
    if (count < 0)
        return err_set(e, E_BUG, "NFC: %s", utf8proc_errmsg(count));
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        char c[4];

        if (append(b, c, unicode_encode((uint32_t)n->wide[i], c), e) < 0)
            return e->code;
    }
    return 0;
}

/* Offset of the first character from pos on that NFC may change; *before:
 * offset of the character in front of it, if that is at or behind pos and may
 * compose with it. */
static size_t find_unstable(const char *text, size_t len, size_t pos,
                            size_t *before)
{
    *before = pos;
    while (pos < len) {
        size_t k = 1;
        bool barrier = false;

        /* the first such character is U+0300, whose lead byte is 0xcc */
        if ((unsigned char)text[pos] >= 0xcc) {
            uint8_t bits = unicode_class[unicode_decode(text + pos, &k)];

            if (bits & UC_UNSTABLE)
                return pos;
            barrier = bits & UC_M;
        } else if ((unsigned char)text[pos] >= 0x80)
            k = 2;
        *before = barrier ? pos + k : pos;
        pos += k;
    }
    return len;
}

static size_t skip_unstable(const char *text, size_t len, size_t pos)
{
    while (pos < len) {
        size_t k;

        if (!(unicode_class[unicode_decode(text + pos, &k)] & UC_UNSTABLE))
            break;
        pos += k;
    }
    return pos;
}

/* 1: the result is appended to b; 0: the text is NFC already. */
static int nfc(struct normalizer *n, struct buffer *b, const char *text,
               size_t len, struct err *e)
{
    size_t before, done = 0, at = find_unstable(text, len, 0, &before);

    if (at == len)
        return 0;
    while (at < len) {
        size_t end = skip_unstable(text, len, at);

        if (append(b, text + done, before - done, e) < 0 ||
            nfc_run(n, b, text + before, end - before, e) < 0)
            return e->code;
        done = end;
        at = find_unstable(text, len, end, &before);
    }
    return append(b, text + done, len - done, e) < 0 ? e->code : 1;
}

static int replace(struct step *s, struct buffer *b, const char *text,
                   size_t len, struct err *e)
{
    struct pattern_walk w;
    size_t done = 0, start, end;
    int rc;

    if (pattern_begin(s->pattern, &w, text, len, e) < 0)
        return e->code;
    while ((rc = pattern_next(s->pattern, &w, &start, &end, e)) > 0) {
        if (append(b, text + done, start - done, e) < 0 ||
            append(b, s->content, s->content_len, e) < 0)
            return e->code;
        done = end;
    }
    if (rc < 0 || append(b, text + done, len - done, e) < 0)
        return e->code;
    return 1;
}

int normalizer_apply(struct normalizer *n, const char *text, size_t len,
                     const char **out, size_t *out_len, struct err *e)
{
    size_t most =
        len > (SIZE_MAX - ROOM) / GROWS ? SIZE_MAX : GROWS * len + ROOM;
    int which = 0;

    for (int i = 0; i < n->n_steps && len; i++) {
        struct step *s = &n->step[i];
        struct buffer *b = &n->buf[which];
        int rc = 1;

        b->len = 0;
        b->most = most;
        if (s->kind == STEP_NFC)
            rc = nfc(n, b, text, len, e);
        else if (s->kind == STEP_REPLACE)
            rc = replace(s, b, text, len, e);
        else if (append(b, s->content, s->content_len, e) < 0 ||
                 append(b, text, len, e) < 0)
            rc = e->code;
        if (rc < 0)
            return rc;
        if (rc) {
            text = b->text;
            len = b->len;
            which = !which;
        }
    }
    *out = text;
    *out_len = len;
    return 0;
}

bool normalizer_prepends(const struct normalizer *n)
{
    for (int i = 0; i < n->n_steps; i++)
        if (n->step[i].kind == STEP_PREPEND)
            return true;
    return false;
}

/* ---- from tokenizer.json ---- */

static int set_content(struct step *s, const struct json *v, const char *key,
                       const char *what, struct err *e)
{
    const char *text;

    if (!json_string(json_get(v, key), &text))
        return err_set(e, E_DATA, "%s: normalizer: no string '%s'", what, key);
    s->content_len = strlen(text);
    s->content = mem_alloc(s->content_len + 1, "normalizer", e);
    if (!s->content)
        return e->code;
    memcpy(s->content, text, s->content_len + 1);
    return 0;
}

static int add_step(struct normalizer *n, const struct json *v,
                    const char *what, struct err *e);

static int add_sequence(struct normalizer *n, const struct json *v,
                        const char *what, struct err *e)
{
    const struct json *list = json_get(v, "normalizers");

    if (!list || json_type(list) != JSON_ARRAY)
        return err_set(e, E_DATA, "%s: normalizer: Sequence without a list",
                       what);
    for (const struct json *i = json_first(list); i; i = json_after(i))
        if (add_step(n, i, what, e) < 0)
            return e->code;
    return 0;
}

static int add_step(struct normalizer *n, const struct json *v,
                    const char *what, struct err *e)
{
    struct step *s = &n->step[n->n_steps];
    const char *type, *text;

    if (!json_string(json_get(v, "type"), &type))
        return err_set(e, E_DATA, "%s: normalizer has no type", what);
    if (!strcmp(type, "Sequence"))
        return add_sequence(n, v, what, e);
    if (n->n_steps == STEPS_MAX)
        return err_set(e, E_CONFIG, "%s: more than %d normalizers", what,
                       STEPS_MAX);
    n->n_steps++;
    if (!strcmp(type, "NFC")) {
        s->kind = STEP_NFC;
        return 0;
    }
    if (!strcmp(type, "Prepend")) {
        s->kind = STEP_PREPEND;
        return set_content(s, v, "prepend", what, e);
    }
    if (!strcmp(type, "Replace")) {
        const struct json *pattern = json_get(v, "pattern");

        s->kind = STEP_REPLACE;
        if (set_content(s, v, "content", what, e) < 0)
            return e->code;
        if (json_string(json_get(pattern, "String"), &text))
            return pattern_literal(&s->pattern, text, what, e);
        if (json_string(json_get(pattern, "Regex"), &text))
            return pattern_regex(&s->pattern, text, what, e);
        return err_set(e, E_DATA, "%s: normalizer: Replace has no pattern",
                       what);
    }
    return err_set(e, E_CONFIG, "%s: normalizer '%.64s' is not supported", what,
                   type);
}

int normalizer_open(struct normalizer **out, const struct json *v,
                    const char *what, struct err *e)
{
    struct normalizer *n = mem_zero(1, sizeof(*n), "normalizer", e);

    *out = NULL;
    if (!n)
        return e->code;
    unicode_init();
    if (v && json_type(v) != JSON_NULL && add_step(n, v, what, e) < 0) {
        normalizer_close(n);
        return e->code;
    }
    *out = n;
    return 0;
}

void normalizer_close(struct normalizer *n)
{
    if (!n)
        return;
    for (int i = 0; i < n->n_steps; i++) {
        free(n->step[i].content);
        pattern_close(n->step[i].pattern);
    }
    free(n->buf[0].text);
    free(n->buf[1].text);
    free(n->wide);
    free(n);
}
