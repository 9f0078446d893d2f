/* unicode.c - see unicode.h: categories of utf8proc, and later characters.
 *
 * Debian 12 has Unicode 14 in utf8proc and in Oniguruma; the tokenizers
 * package is built with an Oniguruma of Unicode 16.  The tables below hold
 * what was assigned in between. */
#include <pthread.h>
#include <utf8proc.h>

#include "tokenizer/unicode.h"

#include "common/io/utf8.h"

uint8_t unicode_class[UNICODE_END];

/* General categories of the tables, each with a Unicode 14 character of that
 * category in three and in four bytes. */
enum { LU, LL, LM, LO, HAN, MN, MC, ND, NO, PD, PO, SM, SO, CF, N_KINDS };
static const struct {
    uint32_t three, four;
    uint8_t bits;
} kind[N_KINDS] = {
    [LU] = { 0x2c00, 0x10400, UC_L | UC_WORD },
    [LL] = { 0x2c30, 0x10428, UC_L | UC_WORD },
    [LM] = { 0x1d2c, 0x10780, UC_L | UC_WORD },
    [LO] = { 0x0904, 0x10000, UC_L | UC_WORD },
    [HAN] = { 0x4e00, 0x20000, UC_L | UC_WORD },
    [MN] = { 0x0900, 0x10a01, UC_M | UC_WORD },
    [MC] = { 0x0903, 0x11000, UC_M | UC_WORD },
    [ND] = { 0x0966, 0x104a0, UC_N | UC_WORD },
    [NO] = { 0x2460, 0x10107, UC_N },
    [PD] = { 0x2010, 0x10ead, UC_P },
    [PO] = { 0x0964, 0x10100, UC_P },
    [SM] = { 0x2200, 0x1d6c1, UC_S },
    [SO] = { 0x2100, 0x1f300, UC_S },
    [CF] = { 0x2060, 0x110bd, 0 },
};

/* Characters assigned in Unicode 15.0, 15.1 and 16.0. */
static const struct {
    uint32_t first, last;
    int kind;
} later[] = {
    { 0x897, 0x897, MN },      { 0xcf3, 0xcf3, MC },
    { 0xece, 0xece, MN },      { 0x1b4e, 0x1b4f, PO },
    { 0x1b7f, 0x1b7f, PO },    { 0x1c89, 0x1c89, LU },
    { 0x1c8a, 0x1c8a, LL },    { 0x2427, 0x2429, SO },
    { 0x2ffc, 0x2fff, SO },    { 0x31e4, 0x31e5, SO },
    { 0x31ef, 0x31ef, SO },    { 0xa7cb, 0xa7cc, LU },
    { 0xa7cd, 0xa7cd, LL },    { 0xa7da, 0xa7da, LU },
    { 0xa7db, 0xa7db, LL },    { 0xa7dc, 0xa7dc, LU },
    { 0x105c0, 0x105f3, LO },  { 0x10d40, 0x10d49, ND },
    { 0x10d4a, 0x10d4d, LO },  { 0x10d4e, 0x10d4e, LM },
    { 0x10d4f, 0x10d4f, LO },  { 0x10d50, 0x10d65, LU },
    { 0x10d69, 0x10d6d, MN },  { 0x10d6e, 0x10d6e, PD },
    { 0x10d6f, 0x10d6f, LM },  { 0x10d70, 0x10d85, LL },
    { 0x10d8e, 0x10d8f, SM },  { 0x10ec2, 0x10ec4, LO },
    { 0x10efc, 0x10eff, MN },  { 0x1123f, 0x11240, LO },
    { 0x11241, 0x11241, MN },  { 0x11380, 0x11389, LO },
    { 0x1138b, 0x1138b, LO },  { 0x1138e, 0x1138e, LO },
    { 0x11390, 0x113b5, LO },  { 0x113b7, 0x113b7, LO },
    { 0x113b8, 0x113ba, MC },  { 0x113bb, 0x113c0, MN },
    { 0x113c2, 0x113c2, MC },  { 0x113c5, 0x113c5, MC },
    { 0x113c7, 0x113ca, MC },  { 0x113cc, 0x113cd, MC },
    { 0x113ce, 0x113ce, MN },  { 0x113cf, 0x113cf, MC },
    { 0x113d0, 0x113d0, MN },  { 0x113d1, 0x113d1, LO },
    { 0x113d2, 0x113d2, MN },  { 0x113d3, 0x113d3, LO },
    { 0x113d4, 0x113d5, PO },  { 0x113d7, 0x113d8, PO },
    { 0x113e1, 0x113e2, MN },  { 0x116d0, 0x116e3, ND },
    { 0x11b00, 0x11b09, PO },  { 0x11bc0, 0x11be0, LO },
    { 0x11be1, 0x11be1, PO },  { 0x11bf0, 0x11bf9, ND },
    { 0x11f00, 0x11f01, MN },  { 0x11f02, 0x11f02, LO },
    { 0x11f03, 0x11f03, MC },  { 0x11f04, 0x11f10, LO },
    { 0x11f12, 0x11f33, LO },  { 0x11f34, 0x11f35, MC },
    { 0x11f36, 0x11f3a, MN },  { 0x11f3e, 0x11f3f, MC },
    { 0x11f40, 0x11f40, MN },  { 0x11f41, 0x11f41, MC },
    { 0x11f42, 0x11f42, MN },  { 0x11f43, 0x11f4f, PO },
    { 0x11f50, 0x11f59, ND },  { 0x11f5a, 0x11f5a, MN },
    { 0x1342f, 0x1342f, LO },  { 0x13439, 0x1343f, CF },
    { 0x13440, 0x13440, MN },  { 0x13441, 0x13446, LO },
    { 0x13447, 0x13455, MN },  { 0x13460, 0x143fa, LO },
    { 0x16100, 0x1611d, LO },  { 0x1611e, 0x16129, MN },
    { 0x1612a, 0x1612c, MC },  { 0x1612d, 0x1612f, MN },
    { 0x16130, 0x16139, ND },  { 0x16d40, 0x16d42, LM },
    { 0x16d43, 0x16d6a, LO },  { 0x16d6b, 0x16d6c, LM },
    { 0x16d6d, 0x16d6f, PO },  { 0x16d70, 0x16d79, ND },
    { 0x18cff, 0x18cff, LO },  { 0x1b132, 0x1b132, LO },
    { 0x1b155, 0x1b155, LO },  { 0x1cc00, 0x1ccef, SO },
    { 0x1ccf0, 0x1ccf9, ND },  { 0x1cd00, 0x1ceb3, SO },
    { 0x1d2c0, 0x1d2d3, NO },  { 0x1df25, 0x1df2a, LL },
    { 0x1e030, 0x1e06d, LM },  { 0x1e08f, 0x1e08f, MN },
    { 0x1e4d0, 0x1e4ea, LO },  { 0x1e4eb, 0x1e4eb, LM },
    { 0x1e4ec, 0x1e4ef, MN },  { 0x1e4f0, 0x1e4f9, ND },
    { 0x1e5d0, 0x1e5ed, LO },  { 0x1e5ee, 0x1e5ef, MN },
    { 0x1e5f0, 0x1e5f0, LO },  { 0x1e5f1, 0x1e5fa, ND },
    { 0x1e5ff, 0x1e5ff, PO },  { 0x1f6dc, 0x1f6dc, SO },
    { 0x1f774, 0x1f776, SO },  { 0x1f77b, 0x1f77f, SO },
    { 0x1f7d9, 0x1f7d9, SO },  { 0x1f8b2, 0x1f8bb, SO },
    { 0x1f8c0, 0x1f8c1, SO },  { 0x1fa75, 0x1fa77, SO },
    { 0x1fa87, 0x1fa89, SO },  { 0x1fa8f, 0x1fa8f, SO },
    { 0x1faad, 0x1faaf, SO },  { 0x1fabb, 0x1fabf, SO },
    { 0x1fac6, 0x1fac6, SO },  { 0x1face, 0x1facf, SO },
    { 0x1fada, 0x1fadc, SO },  { 0x1fadf, 0x1fadf, SO },
    { 0x1fae8, 0x1fae9, SO },  { 0x1faf7, 0x1faf8, SO },
    { 0x1fbcb, 0x1fbef, SO },  { 0x2b739, 0x2b739, HAN },
    { 0x2ebf0, 0x2ee5d, HAN }, { 0x31350, 0x323af, HAN },
};

/* Marks that the package's NFC, of Unicode 9, does not know: there they
 * neither move nor compose, and nothing moves past them. */
static const struct {
    uint32_t first, last;
} barrier[] = {
    { 0x7fd, 0x7fd },     { 0x898, 0x89f },     { 0x8ca, 0x8d3 },
    { 0x9fe, 0x9fe },     { 0xc3c, 0xc3c },     { 0xd3b, 0xd3c },
    { 0xeba, 0xeba },     { 0x1715, 0x1715 },   { 0x1abf, 0x1ace },
    { 0x1df6, 0x1dfa },   { 0xa82c, 0xa82c },   { 0x10d24, 0x10d27 },
    { 0x10eab, 0x10eac }, { 0x10f46, 0x10f50 }, { 0x10f82, 0x10f85 },
    { 0x11070, 0x11070 }, { 0x1133b, 0x1133b }, { 0x1145e, 0x1145e },
    { 0x11839, 0x1183a }, { 0x11930, 0x11930 }, { 0x1193d, 0x1193e },
    { 0x11943, 0x11943 }, { 0x119e0, 0x119e0 }, { 0x11a34, 0x11a34 },
    { 0x11a47, 0x11a47 }, { 0x11a99, 0x11a99 }, { 0x11d42, 0x11d42 },
    { 0x11d44, 0x11d45 }, { 0x11d97, 0x11d97 }, { 0x16ff0, 0x16ff1 },
    { 0x1e130, 0x1e136 }, { 0x1e2ae, 0x1e2ae }, { 0x1e2ec, 0x1e2ef },
};

static uint8_t category_bits(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return UC_L | UC_WORD;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return UC_M | UC_WORD;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL: return UC_N | UC_WORD;
    case UTF8PROC_CATEGORY_NO: return UC_N;
    case UTF8PROC_CATEGORY_PC: return UC_P | UC_WORD;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return UC_P;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO: return UC_S;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return UC_SPACE;
    default: return 0;
    }
}

/* Whether NFC may change the character, join it to one at its left, or move it
 * before one.  True for all other marks and conjoining jamo. */
static bool unstable(uint32_t cp, uint8_t bits)
{
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
    utf8proc_int32_t buf[16];
    utf8proc_ssize_t n;
    char text[4];

    if (cp < 0x300)
        return false;
    if (bits & UC_M || p->combining_class || (cp >= 0x1100 && cp < 0x1200))
        return true;
    if (p->decomp_type || p->decomp_seqindex == UINT16_MAX)
        return false;
    n = utf8proc_decompose((const utf8proc_uint8_t *)text,
                           (utf8proc_ssize_t)unicode_encode(cp, text), buf,
                           (utf8proc_ssize_t)ARRAY_LEN(buf),
                           UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 1 || n > (utf8proc_ssize_t)ARRAY_LEN(buf))
        return true;
    n = utf8proc_normalize_utf32(buf, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    return n != 1 || buf[0] != (utf8proc_int32_t)cp;
}

/* Planes of unassigned and private characters only stay 0. */
static void fill(void)
{
    static const struct {
        uint32_t first, last;
    } word[] = { { 0x200c, 0x200d },
                 { 0x24b6, 0x24e9 },
                 { 0x1f130, 0x1f149 },
                 { 0x1f150, 0x1f169 },
                 { 0x1f170, 0x1f189 } };

    for (uint32_t cp = 0; cp < UNICODE_END; cp++) {
        uint8_t bits = category_bits(cp);

        if ((cp >= 9 && cp <= 13) || cp == 0x85)
            bits |= UC_SPACE;
        if (unstable(cp, bits))
            bits |= UC_UNSTABLE;
        unicode_class[cp] = bits;
        if (cp == 0x3ffff)
            cp = 0xdffff;
        else if (cp == 0xe0fff)
            break;
    }
    for (size_t i = 0; i < ARRAY_LEN(later); i++)
        for (uint32_t cp = later[i].first; cp <= later[i].last; cp++)
            unicode_class[cp] = kind[later[i].kind].bits;
    for (size_t i = 0; i < ARRAY_LEN(barrier); i++)
        for (uint32_t cp = barrier[i].first; cp <= barrier[i].last; cp++)
            unicode_class[cp] &= (uint8_t)~UC_UNSTABLE;
    for (size_t i = 0; i < ARRAY_LEN(word); i++)
        for (uint32_t cp = word[i].first; cp <= word[i].last; cp++)
            unicode_class[cp] |= UC_WORD;
}

void unicode_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, fill);
}

uint32_t unicode_stand_in(uint32_t cp)
{
    size_t lo = 0, hi = ARRAY_LEN(later);

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;

        if (cp > later[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == ARRAY_LEN(later) || cp < later[lo].first)
        return 0;
    return cp < 0x10000 ? kind[later[lo].kind].three :
                          kind[later[lo].kind].four;
}

size_t unicode_encode(uint32_t cp, char p[4])
{
    if (cp < 0x80) {
        p[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        p[0] = (char)(0xc0 | cp >> 6);
        p[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        p[0] = (char)(0xe0 | cp >> 12);
        p[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        p[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    p[0] = (char)(0xf0 | cp >> 18);
    p[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    p[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    p[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

size_t unicode_check(const char *text, size_t n)
{
    const unsigned char *p, *end;

    if (!n)
        return 0; /* an empty text may be NULL; NULL plus an offset is undefined */
    p = (const unsigned char *)text;
    end = p + n;
    while (p < end) {
        size_t k;

        if (end - p >= 8) {
            uint64_t v;

            __builtin_memcpy(&v, p, 8);
            if (!(v & 0x8080808080808080u)) {
                p += 8;
                continue;
            }
        }
        k = utf8_length(p, end);
        if (!k)
            break;
        p += k;
    }
    return (size_t)(p - (const unsigned char *)text);
}

uint32_t unicode_byte_char(unsigned char b)
{
    uint32_t n = 0;

    if ((b >= 33 && b <= 126) || (b >= 161 && b != 173))
        return b;
    for (unsigned i = 0; i < b; i++)
        if (!((i >= 33 && i <= 126) || (i >= 161 && i != 173)))
            n++;
    return 256 + n;
}
