/* json_scan.c - see json_scan.h. */
#include "common/io/json_scan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/utf8.h"

/* cJSON copies a number into 64 bytes and truncates a longer one. */
enum { NUMBER_MAX = 63 };

struct scan {
    const unsigned char *text, *p, *end;
    const char *what;
    size_t keys, stop_key; /* keys seen; the one at which
                            * json_scan_duplicate() stops */
    struct err *e;
};

static int bad_at(const struct scan *s, const unsigned char *at,
                  const char *why)
{
    size_t line = 1, column = 1;

    for (const unsigned char *q = s->text; q < at; q++) {
        column++;
        if (*q == '\n') {
            line++;
            column = 1;
        }
    }
    return err_set(s->e, E_DATA, "%s: line %zu, column %zu: %s", s->what, line,
                   column, why);
}

static int bad(const struct scan *s, const char *why)
{
    return bad_at(s, s->p, s->p < s->end ? why : "the text ends early");
}

static void skip_space(struct scan *s)
{
    while (s->p < s->end && *s->p && strchr(" \t\r\n", *s->p))
        s->p++; /* the quote */
}

/* Value of the four hexadecimal digits at p, or -1. */
static int hex4(const struct scan *s, const unsigned char *p)
{
    int v = 0;

    if (s->end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef";
        const char *d = p[i] ? strchr(digits, p[i] | 0x20) : NULL;

        if (!d || p[i] < '0')
            return -1;
        v = v * 16 + (int)(d - digits);
    }
    return v;
}

/* The rest of an escape sequence, behind its backslash. */
static int scan_escape(struct scan *s)
{
    int hi, lo;

    if (s->p == s->end || !*s->p || !strchr("\"\\/bfnrtu", *s->p))
        return bad(s, "unknown escape in a string");
    if (*s->p++ != 'u')
        return 0;
    hi = hex4(s, s->p);
    if (hi < 0)
        return bad(s, "\\u wants four hexadecimal digits");
    if (!hi)
        return bad(s, "\\u0000 is refused");
    if ((hi & 0xfc00) == 0xdc00)
        return bad(s, "half a surrogate pair");
    s->p += 4;
    if ((hi & 0xfc00) != 0xd800)
        return 0;
    lo = s->end - s->p >= 6 && s->p[0] == '\\' && s->p[1] == 'u' ?
             hex4(s, s->p + 2) :
             -1;
    if ((lo & 0xfc00) != 0xdc00 || lo < 0)
        return bad(s, "half a surrogate pair");
    s->p += 6;
    return 0;
}

static int scan_string(struct scan *s)
{
    s->p++; /* the quote */
    while (s->p < s->end && *s->p != '"') {
        size_t n;

        if (*s->p == '\\') {
            s->p++;
            if (scan_escape(s) < 0)
                return s->e->code;
            continue;
        }
        if (*s->p < 0x20)
            return bad(s, "control character in a string");
        n = utf8_length(s->p, s->end);
        if (!n)
            return bad(s, "invalid UTF-8");
        s->p += n;
    }
    if (s->p == s->end)
        return bad(s, "");
    s->p++;
    return 0;
}

static size_t scan_digits(struct scan *s)
{
    const unsigned char *from = s->p;

    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
    return (size_t)(s->p - from);
}

/* Whether a double holds this integer exactly. */
static bool exact(const char *digits)
{
    char back[2 * NUMBER_MAX];
    double v = strtod(digits, NULL);

    if (fabs(v) < 0x1p53)
        return true;
    snprintf(back, sizeof(back), "%.0f", v);
    return !strcmp(back, digits);
}

static int scan_number(struct scan *s)
{
    const unsigned char *from = s->p;
    char copy[NUMBER_MAX + 1];
    bool integer = true;
    size_t n;

    if (*s->p == '-')
        s->p++;
    if (s->p < s->end && *s->p == '0')
        s->p++; /* the caller rejects a digit behind the 0 */
    else if (!scan_digits(s))
        return bad(s, "expected a value");
    if (s->p < s->end && *s->p == '.') {
        integer = false;
        s->p++;
        if (!scan_digits(s))
            return bad(s, "a digit must follow the point");
    }
    if (s->p < s->end && (*s->p | 0x20) == 'e') {
        integer = false;
        s->p++;
        if (s->p < s->end && (*s->p == '+' || *s->p == '-'))
            s->p++;
        if (!scan_digits(s))
            return bad(s, "a digit must follow the exponent sign");
    }
    n = (size_t)(s->p - from);
    if (n > NUMBER_MAX)
        return bad_at(s, from, "number of more than 63 characters");
    memcpy(copy, from, n);
    copy[n] = 0;
    if (!isfinite(strtod(copy, NULL)))
        return bad_at(s, from, "number too large");
    if (integer && !exact(copy))
        return bad_at(s, from, "integer beyond 2^53 would be rounded");
    return 0;
}

static int scan_word(struct scan *s, const char *word)
{
    size_t n = strlen(word);

    if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n))
        return bad(s, "expected a value");
    s->p += n;
    return 0;
}

static int scan_key(struct scan *s)
{
    const unsigned char *from;

    skip_space(s);
    from = s->p;
    if (s->p == s->end || *s->p != '"')
        return bad(s, "expected a key in quotes");
    if (scan_string(s) < 0)
        return s->e->code;
    if (s->keys++ == s->stop_key)
        return bad_at(s, from, "duplicate key");
    skip_space(s);
    if (s->p == s->end || *s->p != ':')
        return bad(s, "expected ':'");
    s->p++;
    return 0;
}

static int scan_scalar(struct scan *s)
{
    switch (*s->p) {
    case '"': return scan_string(s);
    case 't': return scan_word(s, "true");
    case 'f': return scan_word(s, "false");
    case 'n': return scan_word(s, "null");
    default: return scan_number(s);
    }
}

/* One value.  Nesting is kept on a stack of closing brackets, without
 * recursion. */
static int scan_value(struct scan *s)
{
    char closing[JSON_MAX_DEPTH];
    int depth = 0;

    for (;;) {
        skip_space(s);
        if (s->p == s->end)
            return bad(s, "");
        if (*s->p == '{' || *s->p == '[') {
            if (depth == JSON_MAX_DEPTH)
                return bad(s, "nested deeper than 64");
            closing[depth++] = *s->p++ == '{' ? '}' : ']';
            skip_space(s);
            if (s->p < s->end && *s->p == closing[depth - 1])
                goto close; /* empty */
            if (closing[depth - 1] == '}' && scan_key(s) < 0)
                return s->e->code;
            continue;
        }
        if (scan_scalar(s) < 0)
            return s->e->code;
        for (;;) { /* after a value */
            if (!depth)
                return 0;
            skip_space(s);
            if (s->p == s->end)
                return bad(s, "");
            if (*s->p != closing[depth - 1])
                break;
        close:
            s->p++;
            depth--;
        }
        if (*s->p != ',')
            return bad(s, closing[depth - 1] == '}' ? "expected ',' or '}'" :
                                                      "expected ',' or ']'");
        s->p++;
        if (closing[depth - 1] == '}' && scan_key(s) < 0)
            return s->e->code;
    }
}

static int scan_text(struct scan *s)
{
    if (s->end - s->p >= 3 && !memcmp(s->p, "\xef\xbb\xbf", 3))
        return bad(s, "byte order mark");
    if (scan_value(s) < 0)
        return s->e->code;
    skip_space(s);
    return s->p < s->end ? bad(s, "text after the value") : 0;
}

int json_scan(const char *text, size_t len, const char *what, struct err *e)
{
    struct scan s = {
        .text = (const unsigned char *)text,
        .p = (const unsigned char *)text,
        .end = (const unsigned char *)text + len,
        .what = what,
        .stop_key = SIZE_MAX,
        .e = e,
    };

    return scan_text(&s);
}

int json_scan_duplicate(const char *text, size_t len, size_t nth,
                        const char *what, struct err *e)
{
    struct scan s = {
        .text = (const unsigned char *)text,
        .p = (const unsigned char *)text,
        .end = (const unsigned char *)text + len,
        .what = what,
        .stop_key = nth,
        .e = e,
    };

    if (scan_text(&s) == 0)
        return err_set(e, E_BUG, "%s: duplicate key not found again", what);
    return e->code;
}
