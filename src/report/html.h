/* html.h - builds HTML in a growing buffer; strings from outside are
 * escaped. */
#ifndef FORGE_HTML_H
#define FORGE_HTML_H

#include "common/base.h"

/* Zero-initialise. */
struct html {
    char *text; /* [len], with a NUL behind; free() it */
    size_t len, cap;
    bool failed; /* out of memory: check it once at the end */
};

/* Append as printf does, with the conversions d, u, zu, lld, llu, f, e, g, c, %
 * and s.  The string of %s is escaped for text and attributes: & < > " ' become
 * references, control characters and invalid UTF-8 become U+FFFD.  The format
 * itself is not escaped. */
void html_put(struct html *h, const char *fmt, ...) PRINTF(2, 3);
/* Append text as it is, without escaping. */
void html_raw(struct html *h, const char *text);

/* 12345678 as "11.8 MiB", in buf, which is returned. */
const char *html_bytes(char buf[32], double n);
/* 0.004 s as "4 ms", 3700 s as "1 h 2 min", in buf, which is returned. */
const char *html_seconds(char buf[32], double s);

#endif
