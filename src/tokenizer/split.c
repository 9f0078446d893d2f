/* split.c - see split.h. */
#include <oniguruma.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/scan.h"
#include "tokenizer/split.h"
#include "tokenizer/unicode.h"

struct pattern {
    scan_fn *scan; /* one of the three is set */
    regex_t *regex;
    char *literal;
    size_t literal_len;
    OnigRegion *region;
    char *shadow; /* copy of the text with stand-ins, of equal length */
    size_t shadow_cap;
};

static int onig_error(struct err *e, int code, int rc, const char *what,
                      OnigErrorInfo *info)
{
    UChar why[ONIG_MAX_ERROR_MESSAGE_LEN];
    int n;

    if (rc == ONIGERR_MEMORY)
        return err_set(e, E_TEMP, "%s: cannot allocate memory", what);
    n = info ? onig_error_code_to_str(why, rc, info) :
               onig_error_code_to_str(why, rc);
    return err_set(e, code, "%s: regular expression: %.*s", what, n,
                   (char *)why);
}

int pattern_oniguruma(struct pattern **out, const char *regex, const char *what,
                      struct err *e)
{
    struct pattern *p = mem_zero(1, sizeof(*p), what, e);
    const UChar *text = (const UChar *)regex;
    OnigErrorInfo info;
    int rc;

    *out = NULL;
    if (!p)
        return e->code;
    unicode_init();
    rc = onig_new(&p->regex, text, text + strlen(regex), ONIG_OPTION_NONE,
                  ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
    if (rc != ONIG_NORMAL) {
        p->regex = NULL;
        pattern_close(p);
        return onig_error(e, E_DATA, rc, what, &info);
    }
    p->region = onig_region_new();
    if (!p->region) {
        pattern_close(p);
        return onig_error(e, E_DATA, ONIGERR_MEMORY, what, NULL);
    }
    *out = p;
    return 0;
}

int pattern_regex(struct pattern **out, const char *regex, const char *what,
                  struct err *e)
{
    scan_fn *fn = scan_find(regex);

    return fn ? pattern_scanner(out, fn, e) :
                pattern_oniguruma(out, regex, what, e);
}

int pattern_scanner(struct pattern **out, scan_fn *fn, struct err *e)
{
    struct pattern *p = mem_zero(1, sizeof(*p), "pattern", e);

    *out = p;
    if (!p)
        return e->code;
    unicode_init();
    p->scan = fn;
    return 0;
}

int pattern_literal(struct pattern **out, const char *text, const char *what,
                    struct err *e)
{
    struct pattern *p;

    *out = NULL;
    if (!*text)
        return err_set(e, E_CONFIG, "%s: an empty pattern is not supported",
                       what);
    p = mem_zero(1, sizeof(*p), what, e);
    if (!p)
        return e->code;
    p->literal_len = strlen(text);
    p->literal = mem_alloc(p->literal_len + 1, what, e);
    if (!p->literal) {
        pattern_close(p);
        return e->code;
    }
    memcpy(p->literal, text, p->literal_len + 1);
    *out = p;
    return 0;
}

void pattern_close(struct pattern *p)
{
    if (!p)
        return;
    if (p->regex)
        onig_free(p->regex);
    if (p->region)
        onig_region_free(p->region, 1);
    free(p->literal);
    free(p->shadow);
    free(p);
}

/* Replace characters that are newer than Oniguruma's Unicode by stand-ins of
 * the same category and length.  *text: the copy, if there are any. */
static int stand_in(struct pattern *p, const char **text, size_t len,
                    struct err *e)
{
    const char *s = *text;
    bool copied = false;

    for (size_t i = 0, k; i < len; i += k) {
        uint32_t cp = unicode_decode(s + i, &k), other;

        if (k < 3 || !(other = unicode_stand_in(cp)))
            continue;
        if (!copied) {
            if (len > p->shadow_cap) {
                if (mem_grow(&p->shadow, len, "pattern", e) < 0)
                    return e->code;
                p->shadow_cap = len;
            }
            memcpy(p->shadow, s, len);
            copied = true;
        }
        unicode_encode(other, p->shadow + i);
    }
    if (copied)
        *text = p->shadow;
    return 0;
}

int pattern_begin(struct pattern *p, struct pattern_walk *w, const char *text,
                  size_t len, struct err *e)
{
    *w = (struct pattern_walk){ text, len, 0, 0 };
    return p->regex ? stand_in(p, &w->text, len, e) : 0;
}

static int search(struct pattern *p, struct pattern_walk *w, size_t *start,
                  size_t *end, struct err *e)
{
    const UChar *text = (const UChar *)w->text, *stop = text + w->len;
    int rc = onig_search(p->regex, text, stop, text + w->pos, stop, p->region,
                         ONIG_OPTION_NONE);

    if (rc == ONIG_MISMATCH)
        return 0;
    if (rc < 0)
        return onig_error(e, E_DATA, rc, "pre-tokenizer", NULL);
    *start = (size_t)p->region->beg[0];
    *end = (size_t)p->region->end[0];
    return 1;
}

/* As the package's iterator: an empty match right behind the last match does
 * not count, and the search continues one character further. */
static int next_regex(struct pattern *p, struct pattern_walk *w, size_t *start,
                      size_t *end, struct err *e)
{
    while (w->pos <= w->len) {
        int rc = search(p, w, start, end, e);
        size_t k = 1;

        if (rc <= 0)
            return rc;
        if (*start != *end || w->last != *end + 1) {
            w->pos = *end;
            w->last = *end + 1;
            return 1;
        }
        if (w->pos < w->len)
            unicode_decode(w->text + w->pos, &k);
        w->pos += k;
    }
    return 0;
}

int pattern_next(struct pattern *p, struct pattern_walk *w, size_t *start,
                 size_t *end, struct err *e)
{
    if (p->regex)
        return next_regex(p, w, start, end, e);
    if (p->scan) {
        if (!p->scan(w->text, w->len, w->pos, start, end))
            return 0;
    } else {
        const char *at = memmem(w->text + w->pos, w->len - w->pos, p->literal,
                                p->literal_len);

        if (!at)
            return 0;
        *start = (size_t)(at - w->text);
        *end = *start + p->literal_len;
    }
    w->pos = *end;
    return 1;
}
