/* html.c - see html.h. */
#include "report/html.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cli/units.h"
#include "common/io/utf8.h"

enum { FIRST_CAP = 1 << 16, SPEC_MAX = 16, NUMBER_MAX = 64 };

static void add(struct html *h, const char *s, size_t n)
{
    struct err e;
    size_t cap = h->cap ? h->cap : FIRST_CAP, want;

    if (h->failed || size_add(h->len, n, &want)) {
        h->failed = true;
        return;
    }
    while (cap < want && !size_mul(cap, (size_t)2, &cap))
        ;
    if (cap > h->cap) {
        h->failed = cap < want || mem_grow(&h->text, cap, "report", &e) < 0;
        if (h->failed)
            return;
        h->cap = cap;
    }
    memcpy(h->text + h->len, s, n);
    h->len = want;
}

static const char *reference(unsigned char c)
{
    switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    default: return NULL;
    }
}

static void escape(struct html *h, const char *s)
{
    static const char replacement[] = "\xef\xbf\xbd";
    const char *end = s + strlen(s);

    while (s < end) {
        const unsigned char *p = (const unsigned char *)s;
        size_t n = utf8_length(p, (const unsigned char *)end);
        const char *as = reference(*p);

        if (as) {
            add(h, as, strlen(as));
        } else if (!n || !utf8_printable(s, n)) {
            add(h, replacement, sizeof(replacement) - 1);
        } else {
            add(h, s, n);
        }
        s += n ? n : 1;
    }
}

/* Format one conversion other than %s by printf. */
static int number(char *buf, const char *spec, char kind, va_list *ap)
{
    bool wide = strstr(spec, "ll") != NULL;

    if (strchr("feg", kind))
        return snprintf(buf, NUMBER_MAX, spec, va_arg(*ap, double));
    if (strchr(spec, 'z'))
        return snprintf(buf, NUMBER_MAX, spec, va_arg(*ap, size_t));
    if (kind == 'u')
        return wide ? snprintf(buf, NUMBER_MAX, spec,
                               va_arg(*ap, unsigned long long)) :
                      snprintf(buf, NUMBER_MAX, spec, va_arg(*ap, unsigned));
    return wide ? snprintf(buf, NUMBER_MAX, spec, va_arg(*ap, long long)) :
                  snprintf(buf, NUMBER_MAX, spec, va_arg(*ap, int));
}

static const char *convert(struct html *h, const char *fmt, va_list *ap)
{
    char spec[SPEC_MAX], buf[NUMBER_MAX];
    size_t n = strcspn(fmt + 1, "diufegcs%") + 2;
    char kind = fmt[n - 1];
    int len;

    if (kind == 's') {
        escape(h, va_arg(*ap, const char *));
    } else if (kind == '%') {
        add(h, "%", 1);
    } else if (n < sizeof(spec)) {
        memcpy(spec, fmt, n);
        spec[n] = 0;
        len = number(buf, spec, kind, ap);
        add(h, buf,
            len < 0          ? 0 :
            len < NUMBER_MAX ? (size_t)len :
                               NUMBER_MAX - 1);
    }
    return fmt + n;
}

void html_put(struct html *h, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    while (*fmt) {
        size_t n = strcspn(fmt, "%");

        add(h, fmt, n);
        fmt += n;
        if (*fmt)
            fmt = convert(h, fmt, &ap);
    }
    va_end(ap);
}

void html_raw(struct html *h, const char *text)
{
    add(h, text, strlen(text));
}

const char *html_bytes(char buf[32], double n)
{
    return size_text(buf, n);
}

const char *html_seconds(char buf[32], double s)
{
    if (s < 0.9995)
        snprintf(buf, 32, "%.3g ms", s * 1000);
    else if (s < 99.95)
        snprintf(buf, 32, "%.3g s", s);
    else if (s < 5970)
        snprintf(buf, 32, "%.0f min %02.0f s", (double)(int)(s / 60),
                 (double)((int)s % 60));
    else
        snprintf(buf, 32, "%.1f h", s / 3600);
    return buf;
}
