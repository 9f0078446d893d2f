/* html.h - text that becomes HTML: a growing buffer, and everything that comes
 * from outside escaped on its way in. */
#ifndef FORGE_HTML_H
#define FORGE_HTML_H

#include "common/base.h"

struct html {
    char *text; /* free() it */
    size_t len, cap;
    bool failed; /* out of memory: check once at the end */
};

/* As printf, with the conversions d, u, zu, lld, llu, f, e, g, c, % and s.
 * What %s brings is escaped, in text and attributes alike: & < > " ', control
 * characters and what is no UTF-8 become references or U+FFFD.  The format is
 * trusted. */
void html_put(struct html *h, const char *fmt, ...) PRINTF(2, 3);
/* As it stands: text of ours that may hold any character. */
void html_raw(struct html *h, const char *text);

/* 12345678 as "12.3 MB", into buf, which is returned. */
const char *html_bytes(char buf[32], double n);
/* 0.004 s as "4 ms", 3700 s as "1 h 2 min". */
const char *html_seconds(char buf[32], double s);

#endif
