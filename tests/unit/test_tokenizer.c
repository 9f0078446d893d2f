/* The tokenizer against ids made by the tokenizers package, and the
 * hand-written scanners against Oniguruma. */
#include <string.h>

#include "common/io/file.h"
#include "common/io/json.h"
#include "test.h"
#include "tokenizer/split.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

#define FIXTURES "tests/reference/tokenizers/"

static struct err e;

static struct tokenizer *open_fixture(const char *name)
{
    struct tokenizer *t;
    char path[128];

    snprintf(path, sizeof(path), FIXTURES "%s.json", name);
    if (tokenizer_open(&t, path, &e) < 0)
        fprintf(stderr, "%s\n", e.msg);
    CHECK(e.code == 0);
    return t;
}

/* ---- golden ids ---- */

static bool same_ids(const struct json *list, const struct token_ids *got)
{
    size_t n = 0;

    for (const struct json *i = json_first(list); i; i = json_after(i), n++) {
        int64_t id;

        if (n == got->count || !json_int(i, &id) || id != got->id[n])
            return false;
    }
    return n == got->count;
}

static bool same_sum(const struct json *line, const struct token_ids *got)
{
    int64_t count, want, sum = 0;

    for (size_t i = 0; i < got->count; i++)
        sum += (int64_t)got->id[i] * (int64_t)(i % 1000 + 1);
    return json_int(json_get(line, "count"), &count) &&
           json_int(json_get(line, "sum"), &want) &&
           count == (int64_t)got->count && want == sum;
}

static void check_line(struct tokenizer *t, const struct json *line)
{
    struct token_ids ids = { 0 };
    int64_t times = 1;
    const char *text;
    size_t len;
    char *all;
    bool same;

    CHECK(json_string(json_get(line, "text"), &text));
    len = strlen(text);
    if (!json_int(json_get(line, "times"), &times))
        times = 1;
    all = malloc(len * (size_t)times + 1);
    CHECK(all);
    for (int64_t i = 0; i < times; i++)
        memcpy(all + len * (size_t)i, text, len);
    CHECK(tokenizer_encode(t, all, len * (size_t)times, &ids, &e) == 0);
    same = json_get(line, "ids") ? same_ids(json_get(line, "ids"), &ids) :
                                   same_sum(line, &ids);
    if (!same)
        fprintf(stderr, "ids differ: '%s'\n", text);
    CHECK(same);
    free(all);
    free(ids.id);
}

static void test_golden(void)
{
    struct tokenizer *t = NULL;
    char open[32] = "", *text, *line, *next;
    size_t len, lines = 0;

    CHECK(file_slurp(&text, &len, "tests/reference/token_golden.jsonl", 1 << 24,
                     &e) == 0);
    for (line = text; *line; line = next, lines++) {
        struct json_doc *doc;
        const char *name;

        next = strchr(line, '\n') + 1;
        CHECK(json_parse(&doc, line, (size_t)(next - 1 - line), "golden", &e) ==
              0);
        CHECK(json_string(json_get(json_root(doc), "tokenizer"), &name));
        if (strcmp(open, name)) {
            tokenizer_close(t);
            t = open_fixture(name);
            snprintf(open, sizeof(open), "%s", name);
        }
        check_line(t, json_root(doc));
        json_free(doc);
    }
    CHECK(lines > 400);
    tokenizer_close(t);
    free(text);
}

/* ---- scanners ---- */

static uint64_t seed = 88172645463325252u;

static uint32_t rnd(uint32_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32) % n;
}

/* Strings of what patterns turn on: every class, both newlines, quotes. */
static size_t random_text(char *to, size_t chars)
{
    static const char *const alphabet[] = {
        "a",      "E",      "s",          "T",          "ll",
        "'",      "'re",    " ",          " ",          "  ",
        "\t",     "\n",     "\r",         "\r\n",       "0",
        "12",     "\u0663", "\u00b2",     ".",          ",",
        "!",      "[",      "\\",         "_",          "$",
        "+",      "\u4e00", "\u9fa5",     "\u9fa6",     "\u3040",
        "\u30ff", "\u3042", "\u017f",     "\u00e9",     "\u0301",
        "\u093f", "\u20dd", "\u00a0",     "\xc2\x85",   "\u2028",
        "\u3000", "\u180e", "\u200b",     "\x01",       "\x7f",
        "\ufeff", "\ufffe", "\U0001f600", "\U0002ebf0", "\U0010ffff",
        "\u2160", "\u00ab", "\u00a9"
    };
    size_t n = 0;

    for (size_t i = 0; i < chars; i++) {
        const char *c = alphabet[rnd(ARRAY_LEN(alphabet))];

        if (rnd(30) == 0) {
            uint32_t cp = 1 + rnd(rnd(2) ? 0x3000 : 0x30000);

            if (cp < 0xd800 || cp > 0xdfff) {
                n += unicode_encode(cp, to + n);
                continue;
            }
        }
        memcpy(to + n, c, strlen(c));
        n += strlen(c);
    }
    return n;
}

static void compare_walks(struct pattern *a, struct pattern *b,
                          const char *text, size_t len)
{
    struct pattern_walk wa, wb;
    size_t sa = 0, ea = 0, sb = 0, eb = 0;
    int more, other;

    CHECK(pattern_begin(a, &wa, text, len, &e) == 0);
    CHECK(pattern_begin(b, &wb, text, len, &e) == 0);
    do {
        more = pattern_next(a, &wa, &sa, &ea, &e);
        other = pattern_next(b, &wb, &sb, &eb, &e);
        CHECK(more >= 0 && more == other);
        if (more && (sa != sb || ea != eb))
            fprintf(stderr, "%zu..%zu but %zu..%zu in '%.*s'\n", sa, ea, sb, eb,
                    (int)len, text);
        CHECK(!more || (sa == sb && ea == eb));
    } while (more);
}

static void test_scanners(void)
{
    static const char *const regex[] = {
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
        "\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
        "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
        "\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
        " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "\\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
        "\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    };
    char text[4096];

    for (size_t i = 0; i < ARRAY_LEN(regex); i++) {
        struct pattern *hand, *onig;

        CHECK(pattern_regex(&hand, regex[i], "test", &e) == 0);
        CHECK(pattern_oniguruma(&onig, regex[i], "test", &e) == 0);
        for (int k = 0; k < 4000; k++)
            compare_walks(hand, onig, text, random_text(text, 1 + rnd(60)));
        pattern_close(hand);
        pattern_close(onig);
    }
}

/* ---- beginnings of a text ---- */

static void test_settled(const char *fixture)
{
    struct tokenizer *t = open_fixture(fixture);
    static char text[65536];
    size_t len = random_text(text, 12000), some = 0;
    struct token_ids all = { 0 };

    CHECK(tokenizer_encode(t, text, len, &all, &e) == 0);
    for (int i = 0; i < 200; i++) {
        struct token_ids part = { 0 };
        size_t n = rnd((uint32_t)len), settled;

        while (n && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--;
        CHECK(tokenizer_encode_start(t, text, n, &part, &settled, &e) == 0);
        CHECK(settled <= part.count && settled <= all.count);
        CHECK(!settled || !memcmp(part.id, all.id, settled * sizeof(int32_t)));
        some += settled > 100;
        free(part.id);
    }
    CHECK(some > 100);
    free(all.id);
    tokenizer_close(t);
}

/* ---- bytes that are no text, characters that are hard to write down ---- */

static void test_utf8(void)
{
    static const struct {
        const char *text;
        size_t len, at;
    } bad[] = { { "abc\xff", 4, 3 },
                { "\xc0\x80", 2, 0 },
                { "0123456789\xe2\x82", 12, 10 },
                { "\xed\xa0\x80", 3, 0 },
                { "\xf4\x90\x80\x80", 4, 0 },
                { "\xc3(", 2, 0 },
                { "a\xf0\x80\x80\x80", 5, 1 } };
    struct tokenizer *t = open_fixture("gpt2");
    struct token_ids ids = { 0 };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char want[64];

        CHECK(unicode_check(bad[i].text, bad[i].len) == bad[i].at);
        CHECK(tokenizer_encode(t, bad[i].text, bad[i].len, &ids, &e) == E_DATA);
        snprintf(want, sizeof(want), "byte %zu is not valid UTF-8", bad[i].at);
        CHECK(!strcmp(e.msg, want));
        e.code = 0;
    }
    CHECK(ids.count == 0);
    /* NUL is a character like any other; "\xc4\x80" is how GPT-2 spells it */
    CHECK(tokenizer_encode(t, "a\0b", 3, &ids, &e) == 0);
    CHECK(ids.count == 3);
    free(ids.id);
    tokenizer_close(t);
}

/* ---- what is refused ---- */

#define MODEL                                                                  \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},"
#define PLAIN MODEL "\"merges\":[\"a b\"]}"

static void test_refused(void)
{
    static const struct {
        const char *json;
        int code;
        const char *says;
    } bad[] = {
        { "[]", E_DATA, "no object" },
        { "{}", E_DATA, "no model" },
        { "{\"version\":\"2.0\"," PLAIN "}", E_CONFIG, "version" },
        { "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", E_CONFIG,
          "WordPiece" },
        { "{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", E_CONFIG,
          "Unigram" },
        { "{" MODEL "\"merges\":[],\"dropout\":0.1}}", E_CONFIG, "dropout" },
        { "{" MODEL "\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}", E_CONFIG,
          "end_of_word_suffix" },
        { "{" MODEL "\"merges\":[],\"continuing_subword_prefix\":\"##\"}}",
          E_CONFIG, "continuing_subword_prefix" },
        { "{" MODEL "\"merges\":[\"a c\"]}}", E_DATA, "merge 0" },
        { "{" MODEL "\"merges\":[\"b a\"]}}", E_DATA, "'ba'" },
        { "{" MODEL "\"merges\":[\"a b c\"]}}", E_DATA, "two words" },
        { "{" MODEL "\"merges\":[[\"a\"]]}}", E_DATA, "pair" },
        { "{" MODEL "\"merges\":[1]}}", E_DATA, "merge 0" },
        { "{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", E_DATA, "'a'" },
        { "{\"model\":{\"vocab\":{\"a\":0}}}", E_DATA, "merges" },
        { "{\"normalizer\":{\"type\":\"NFKC\"}," PLAIN "}", E_CONFIG, "NFKC" },
        { "{\"normalizer\":{\"type\":\"Replace\",\"content\":\"\"}," PLAIN "}",
          E_DATA, "pattern" },
        { "{\"pre_tokenizer\":{\"type\":\"Whitespace\"}," PLAIN "}", E_CONFIG,
          "Whitespace" },
        { "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}"
          ",\"behavior\":\"Isolated\",\"invert\":false}," PLAIN "}",
          E_DATA, "regular expression" },
        { "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"\"}"
          ",\"behavior\":\"Isolated\",\"invert\":false}," PLAIN "}",
          E_CONFIG, "empty pattern" },
        { "{\"post_processor\":{\"type\":\"Magic\"}," PLAIN "}", E_CONFIG,
          "Magic" },
        { "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":"
          "[{\"SpecialToken\":{\"id\":\"x\",\"type_id\":0}}]}," PLAIN "}",
          E_DATA, "'x'" },
        { "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}"
          "," PLAIN "}",
          E_CONFIG, "without a sequence" },
        { "{\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]," PLAIN "}", E_DATA,
          "added_tokens" },
        { "{" PLAIN "} x", E_DATA, "" },
    };
    struct tokenizer *t;

    CHECK(tokenizer_parse(&t, "{" PLAIN "}", strlen("{" PLAIN "}"), "'t'",
                          &e) == 0);
    tokenizer_close(t);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        int rc =
            tokenizer_parse(&t, bad[i].json, strlen(bad[i].json), "'t'", &e);

        if (rc != bad[i].code || !strstr(e.msg, bad[i].says))
            fprintf(stderr, "%s: %d %s\n", bad[i].json, rc, e.msg);
        CHECK(rc == bad[i].code && t == NULL);
        CHECK(strstr(e.msg, "'t'") && strstr(e.msg, bad[i].says));
    }
    e.code = 0;
}

static void test_special(void)
{
    struct tokenizer *t = open_fixture("llama2");

    CHECK(tokenizer_prefix(t)->count == 1 && tokenizer_prefix(t)->id[0] == 1);
    CHECK(tokenizer_suffix(t)->count == 1 && tokenizer_suffix(t)->id[0] == 2);
    tokenizer_close(t);
    t = open_fixture("qwen2");
    CHECK(!tokenizer_prefix(t)->count && !tokenizer_suffix(t)->count);
    tokenizer_close(t);
}

int main(void)
{
    base_init("test_tokenizer");
    unicode_init();
    test_golden();
    test_scanners();
    test_settled("llama3");
    test_settled("deepseek");
    test_settled("qwen2");
    test_settled("llama2");
    test_settled("mistral");
    test_utf8();
    test_refused();
    test_special();
    return 0;
}
