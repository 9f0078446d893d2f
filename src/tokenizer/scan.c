/* scan.c - see scan.h.
 *
 * Oniguruma takes 0.3 microseconds and more to find a piece of five bytes.
 * These scanners find the same pieces; test_tokenizer compares them with
 * Oniguruma on random strings of critical characters.  Each tries the
 * alternatives of its pattern in order, and excludes those that cannot match
 * by the classes of one or two characters. */
#include <string.h>

#include "tokenizer/scan.h"
#include "tokenizer/unicode.h"

const char scan_gpt2_regex[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
    "\\s+(?!\\S)|\\s+";

enum { KNOWN = UC_SPACE | UC_L | UC_N };

/* Class of the character at pos, and its length; both 0 at the end. */
static inline uint8_t class_at(const char *text, size_t len, size_t pos,
                               size_t *k)
{
    if (pos >= len) {
        *k = 0;
        return 0;
    }
    if ((unsigned char)text[pos] < 0x80) {
        *k = 1;
        return unicode_class[(unsigned char)text[pos]];
    }
    return unicode_class[unicode_decode(text + pos, k)];
}

/* End of the run of characters of any class in mask. */
static inline size_t run_of(const char *text, size_t len, size_t pos, int mask)
{
    size_t k;

    while (class_at(text, len, pos, &k) & mask)
        pos += k;
    return pos;
}

/* End of the run of characters of no class in mask. */
static inline size_t run_of_none(const char *text, size_t len, size_t pos,
                                 int mask)
{
    size_t k;

    while (pos < len && !(class_at(text, len, pos, &k) & mask))
        pos += k;
    return pos;
}

static inline bool is_newline(char c)
{
    return c == '\r' || c == '\n';
}

static inline size_t skip_newlines(const char *text, size_t len, size_t pos)
{
    while (pos < len && is_newline(text[pos]))
        pos++;
    return pos;
}

/* Length of 's|'t|'re|'ve|'m|'ll|'d at an apostrophe, or 0.  Ignoring case,
 * the long s (U+017F) matches s, too. */
static size_t contraction(const char *text, size_t len, size_t pos,
                          bool fold_case)
{
    size_t left = len - pos - 1;
    char a = 0, b = 0;

    if (left > 0)
        a = text[pos + 1];
    if (left > 1)
        b = text[pos + 2];
    if (fold_case) {
        if (a == '\xc5' && b == '\xbf')
            return 3;
        if (a >= 'A' && a <= 'Z')
            a = (char)(a + 32);
        if (b >= 'A' && b <= 'Z')
            b = (char)(b + 32);
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') ||
                   (a == 'l' && b == 'l') ?
               3 :
               0;
}

/* End of \s*[\r\n]+|\s+(?!\S)|\s+ at a blank; newlines: includes the first
 * alternative. */
static size_t blanks(const char *text, size_t len, size_t pos, bool newlines)
{
    size_t end = pos, last = pos, after_newline = 0, k;

    while (class_at(text, len, end, &k) & UC_SPACE) {
        last = end;
        end += k;
        if (newlines && is_newline(text[last]))
            after_newline = end;
    }
    if (after_newline)
        return after_newline;
    return end < len && last > pos ? last : end;
}

/* Llama 3, Qwen 2 and 3, which differ in how many digits are a piece:
 * (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}|
 *  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static inline size_t cl100k(const char *text, size_t len, size_t pos,
                            int digits)
{
    size_t k, k2, n;
    uint8_t c = class_at(text, len, pos, &k), next;

    if (c & UC_L)
        return run_of(text, len, pos + k, UC_L);
    if (text[pos] == '\'' && (n = contraction(text, len, pos, true)))
        return pos + n;
    if (c & UC_N) {
        while (digits-- && class_at(text, len, pos, &k) & UC_N)
            pos += k;
        return pos;
    }
    next = class_at(text, len, pos + k, &k2);
    if (next & UC_L && !is_newline(text[pos]))
        return run_of(text, len, pos + k, UC_L);
    if (!(c & UC_SPACE))
        n = pos + k;
    else if (text[pos] == ' ' && k2 && !(next & KNOWN))
        n = pos + 1 + k2;
    else
        return blanks(text, len, pos, true);
    return skip_newlines(text, len, run_of_none(text, len, n, KNOWN));
}

static bool scan_llama3(const char *text, size_t len, size_t pos, size_t *start,
                        size_t *end)
{
    *start = pos;
    return pos < len && (*end = cl100k(text, len, pos, 3), true);
}

static bool scan_qwen2(const char *text, size_t len, size_t pos, size_t *start,
                       size_t *end)
{
    *start = pos;
    return pos < len && (*end = cl100k(text, len, pos, 1), true);
}

static bool scan_gpt2(const char *text, size_t len, size_t pos, size_t *start,
                      size_t *end)
{
    size_t k, at = pos, n;
    uint8_t c;

    *start = pos;
    if (pos >= len)
        return false;
    if (text[pos] == '\'' && (n = contraction(text, len, pos, false))) {
        *end = pos + n;
        return true;
    }
    if (text[pos] == ' ' && pos + 1 < len &&
        !(class_at(text, len, pos + 1, &k) & UC_SPACE))
        at++;
    c = class_at(text, len, at, &k);
    if (c & UC_SPACE)
        *end = blanks(text, len, pos, false);
    else if (c & (UC_L | UC_N))
        *end = run_of(text, len, at, c & (UC_L | UC_N));
    else
        *end = run_of_none(text, len, at, KNOWN);
    return true;
}

/* ---- DeepSeek V3: three patterns, one after the other ---- */

/* \p{N}{1,3} */
static bool scan_digits3(const char *text, size_t len, size_t pos,
                         size_t *start, size_t *end)
{
    size_t k;

    pos = run_of_none(text, len, pos, UC_N);
    *start = pos;
    for (int i = 0; i < 3 && class_at(text, len, pos, &k) & UC_N; i++)
        pos += k;
    *end = pos;
    return pos > *start;
}

/* [one of U+4E00..9FA5, U+3040..30FF]: all begin with bytes e3..e9. */
static inline bool is_cjk(const char *p)
{
    uint32_t cp;
    size_t k;

    if ((unsigned char)*p < 0xe3 || (unsigned char)*p > 0xe9)
        return false;
    cp = unicode_decode(p, &k);
    return (cp >= 0x4e00 && cp <= 0x9fa5) || (cp >= 0x3040 && cp <= 0x30ff);
}

static bool scan_cjk(const char *text, size_t len, size_t pos, size_t *start,
                     size_t *end)
{
    while (pos < len && !is_cjk(text + pos))
        pos++; /* inside of a character no byte is e3..e9 */
    *start = pos;
    while (pos < len && is_cjk(text + pos))
        pos += 3;
    *end = pos;
    return pos > *start;
}

static inline bool is_ascii_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static inline bool is_ascii_punct(char c)
{
    return c > ' ' && c < 0x7f && !is_ascii_letter(c) &&
           !(c >= '0' && c <= '9');
}

/* [!-/:-~...][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
 *  ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * at pos; 0: none of them. */
static size_t deepseek_at(const char *text, size_t len, size_t pos)
{
    size_t k, k2, n;
    uint8_t c = class_at(text, len, pos, &k), next;

    if (is_ascii_punct(text[pos]) && pos + 1 < len &&
        is_ascii_letter(text[pos + 1])) {
        for (n = pos + 1; n < len && is_ascii_letter(text[n]);)
            n++;
        return n;
    }
    if (c & (UC_L | UC_M))
        return run_of(text, len, pos + k, UC_L | UC_M);
    next = class_at(text, len, pos + k, &k2);
    if (next & (UC_L | UC_M) && !(c & (UC_P | UC_S)) && !is_newline(text[pos]))
        return run_of(text, len, pos + k, UC_L | UC_M);
    if (c & (UC_P | UC_S))
        n = pos + k;
    else if (text[pos] == ' ' && next & (UC_P | UC_S))
        n = pos + 1 + k2;
    else
        return c & UC_SPACE ? blanks(text, len, pos, true) : 0;
    return skip_newlines(text, len, run_of(text, len, n, UC_P | UC_S));
}

static bool scan_deepseek(const char *text, size_t len, size_t pos,
                          size_t *start, size_t *end)
{
    for (size_t k; pos < len; pos += k) {
        *end = deepseek_at(text, len, pos);
        if (*end) {
            *start = pos;
            return true;
        }
        class_at(text, len, pos, &k);
    }
    return false;
}

/* Digits uses Rust's standard library, which has Unicode 17: Tolong Siki
 * digits and U+16FF4 to U+16FF6 are numbers there. */
bool scan_number(const char *text, size_t len, size_t pos, size_t *start,
                 size_t *end)
{
    for (size_t k; pos < len; pos += k) {
        uint32_t cp = unicode_decode(text + pos, &k);

        if (unicode_class[cp] & UC_N || (cp >= 0x11de0 && cp <= 0x11de9) ||
            (cp >= 0x16ff4 && cp <= 0x16ff6)) {
            *start = pos;
            *end = pos + k;
            return true;
        }
    }
    return false;
}

scan_fn *scan_find(const char *regex)
{
#define CASELESS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define BLANKS   "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
    static const struct {
        const char *regex;
        scan_fn *fn;
    } known[] = {
        { scan_gpt2_regex, scan_gpt2 },
        { CASELESS "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" BLANKS,
          scan_llama3 },
        { CASELESS "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" BLANKS,
          scan_qwen2 },
        { "\\p{N}{1,3}", scan_digits3 },
        { "[一-龥\u3040-ゟ゠-ヿ]+", scan_cjk },
        { "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
          "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
          "\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
          scan_deepseek },
        { "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
          "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
          "[\\r\\n]*|" BLANKS,
          scan_deepseek },
    };

    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (!strcmp(known[i].regex, regex))
            return known[i].fn;
    return NULL;
}
