/* unicode.h - character properties, by table. */
#ifndef FORGE_UNICODE_H
#define FORGE_UNICODE_H

#include "common/base.h"

enum {
    UC_L = 1,         /* \p{L} */
    UC_N = 2,         /* \p{N} */
    UC_M = 4,         /* \p{M} */
    UC_P = 8,         /* \p{P} */
    UC_S = 16,        /* \p{S} */
    UC_SPACE = 32,    /* \s of Oniguruma: White_Space */
    UC_UNSTABLE = 64, /* NFC may change or reorder it; a mark without this
                       * bit is a barrier that nothing moves past */
    UC_WORD = 128     /* \w of Rust's regex crate */
};

enum { UNICODE_END = 0x110000 };

/* UC_* bits by code point, of Unicode 16, which the tokenizers package uses.
 * Filled by unicode_init(). */
extern uint8_t unicode_class[UNICODE_END];
/* Fill the table; any number of times, from any thread. */
void unicode_init(void);

/* For a character that Unicode 14, the version of older Oniguruma, lacks: a
 * character of the same category and encoded length that it has; 0 for all
 * others. */
uint32_t unicode_stand_in(uint32_t cp);

/* The character at p, valid UTF-8; *len: its bytes. */
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

/* Encode cp as UTF-8; returns the number of bytes, 1..4. */
size_t unicode_encode(uint32_t cp, char p[4]);

/* Offset of the first byte that is not valid UTF-8; n: all is valid. */
size_t unicode_check(const char *text, size_t n);

/* The character that stands for a byte in the ByteLevel alphabet. */
uint32_t unicode_byte_char(unsigned char b);

#endif
