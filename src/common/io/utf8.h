/* utf8.h - validation of UTF-8 (RFC 3629). */
#ifndef FORGE_UTF8_H
#define FORGE_UTF8_H

#include "common/base.h"

/* Bytes (1..4) of the character at p < end; 0: not valid UTF-8 (overlong,
 * surrogate, beyond U+10FFFF, cut short). */
static inline size_t utf8_length(const unsigned char *p,
                                 const unsigned char *end)
{
    size_t n = *p < 0x80 ? 1 :
               *p < 0xc2 ? 0 :
               *p < 0xe0 ? 2 :
               *p < 0xf0 ? 3 :
               *p < 0xf5 ? 4 :
                           0;

    if (!n || (size_t)(end - p) < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

/* Valid UTF-8 without control characters (U+0000..1F, 7F..9F). */
static inline bool utf8_printable(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + n;

    while (p < end) {
        size_t k = utf8_length(p, end);

        if (!k || *p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] < 0xa0))
            return false;
        p += k;
    }
    return true;
}

#endif
