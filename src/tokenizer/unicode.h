/* unicode.h - what the tokenizer must know of a character, by table. */
#ifndef FORGE_UNICODE_H
#define FORGE_UNICODE_H

#include "common/base.h"

enum {
    UC_L = 1,         /* \p{L} */
    UC_N = 2,         /* \p{N} */
    UC_M = 4,         /* \p{M} */
    UC_P = 8,         /* \p{P} */
    UC_S = 16,        /* \p{S} */
    UC_SPACE = 32,    /* \s of Oniguruma, White_Space of Unicode */
    UC_UNSTABLE = 64, /* may change or move under NFC; a mark without this
                         bit is a barrier: nothing moves past it */
    UC_WORD = 128     /* \w of Rust's regex crate */
};

enum { UNICODE_END = 0x110000 };

/* UC_* bits by code point, with the categories of Unicode 16, which is what
 * the tokenizers package is built with; filled by unicode_init(). */
extern uint8_t unicode_class[UNICODE_END];
void unicode_init(void); /* any number of times, from any thread */

/* Unicode 14, which the installed Oniguruma may stop at, does not know the
 * letters of later versions.  For such a character: one of the same category
 * and encoded length that it does know; 0 for all others. */
uint32_t unicode_stand_in(uint32_t cp);

/* The character at p of valid UTF-8. */
static inline uint32_t unicode_decode(const char *p, size_t *len)
{
    const unsigned char *s = (const unsigned char *)p;

    if (s[0] < 0x80) {
        *len = 1;
        return s[0];
    }
    if (s[0] < 0xe0) {
        *len = 2;
        return (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    }
    if (s[0] < 0xf0) {
        *len = 3;
        return (s[0] & 0xfu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    }
    *len = 4;
    return (s[0] & 7u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 |
           (s[3] & 0x3fu);
}

/* Bytes 1..4 written to p. */
size_t unicode_encode(uint32_t cp, char p[4]);

/* Offset of the first byte that is no valid UTF-8; n when all is valid. */
size_t unicode_check(const char *text, size_t n);

/* What a byte is called in the ByteLevel alphabet, a code point. */
uint32_t unicode_byte_char(unsigned char b);

#endif
