/* JSON: what is refused, with its place; what is read back. */
#include <math.h>
#include <string.h>

#include "common/io/json.h"
#include "test.h"

static struct err e;

static int parse(const char *text, size_t n)
{
    struct json_doc *d;
    char *exact = malloc(n ? n : 1); /* no byte after it may be read */
    int rc;

    memcpy(exact, text, n);
    rc = json_parse(&d, exact, n, "'t'", &e);
    free(exact);
    if (rc == 0)
        json_free(d);
    return rc;
}

static const struct {
    const char *text, *why;
} refused[] = {
    { "", "'t': line 1, column 1: the text ends early" },
    { " ", "ends early" },
    { "{", "ends early" },
    { "[1", "ends early" },
    { "\"abc", "ends early" },
    { "{\"a\":1,\n \"a\":2}", "'t': line 2, column 2: duplicate key" },
    { "{\"\\u0061\":1,\"a\":2}", "column 13: duplicate key" },
    { "{\"x\":{\"a\":1},\"y\":{\"b\":1,\"b\":1}}", "column 25: duplicate key" },
    { "{\"a\":1} x", "text after the value" },
    { "{}{}", "text after the value" },
    { "\xef\xbb\xbf{}", "byte order mark" },
    { "01", "text after" },
    { "-01", "text after" },
    { "+1", "expected a value" },
    { ".5", "expected a value" },
    { "1.", "ends early" },
    { "[1.]", "digit must follow the point" },
    { "[1e]", "digit must follow the exponent" },
    { "0x10", "text after" },
    { "NaN", "expected a value" },
    { "Infinity", "expected a value" },
    { "-", "ends early" },
    { "1e999", "too large" },
    { "9007199254740993", "beyond 2^53" },
    { "-9007199254740993", "beyond 2^53" },
    { "18446744073709551615", "beyond 2^53" },
    { "1111111111111111111111111111111111111111111111111111111111111111",
      "more than 63" },
    { "[1,]", "expected a value" },
    { "{\"a\":1,}", "expected a key" },
    { "{a:1}", "expected a key" },
    { "{\"a\" 1}", "expected ':'" },
    { "[1 2]", "expected ',' or ']'" },
    { "{\"a\":1 2}", "expected ',' or '}'" },
    { "[}", "expected a value" },
    { "'a'", "expected a value" },
    { "\"a\tb\"", "control character" },
    { "\"\xff\"", "invalid UTF-8" },
    { "\"\xc0\x80\"", "invalid UTF-8" },
    { "\"\xed\xa0\x80\"", "invalid UTF-8" },
    { "\"a\\u0000b\"", "\\u0000 is refused" },
    { "\"\\ud800\"", "half a surrogate" },
    { "\"\\udc00\"", "half a surrogate" },
    { "\"\\ud800\\u0041\"", "half a surrogate" },
    { "\"\\u12g4\"", "four hexadecimal" },
    { "\"\\x41\"", "unknown escape" },
    { "tru", "expected a value" },
    { "nulll", "text after" },
};

static void test_refused(void)
{
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        CHECK(parse(refused[i].text, strlen(refused[i].text)) == E_DATA);
        if (!strstr(e.msg, refused[i].why)) {
            fprintf(stderr, "%s: %s\n", refused[i].text, e.msg);
            CHECK(0);
        }
    }
    CHECK(parse("\"a\0b\"", 5) == E_DATA); /* a raw NUL */
    CHECK(parse("1\0", 2) == E_DATA);
}

static void test_every_prefix(void)
{
    static const char text[] = "{\"a\":[1.5e-3,true,false,null,"
                               "\"\\ud83d\\ude00\xc3\xa9\\n\"],\"b\":{}}";

    for (size_t n = 0; n < sizeof(text) - 1; n++)
        CHECK(parse(text, n) == E_DATA);
    CHECK(parse(text, sizeof(text) - 1) == 0);
}

static void test_depth(void)
{
    char text[2 * 65];

    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    CHECK(parse(text + 1, 128) == 0);
    CHECK(parse(text, 130) == E_DATA && strstr(e.msg, "deeper than 64"));
}

static const struct json *value(struct json_doc **d, const char *text)
{
    CHECK(json_parse(d, text, strlen(text), "'t'", &e) == 0);
    return json_root(*d);
}

static void test_values(void)
{
    struct json_doc *d;
    const struct json *r = value(
        &d, "{\"A\":7,\"a\":8,\"s\":\"x\",\"n\":null,\"t\":true,\"f\":0.25,"
            "\"big\":9007199254740992,\"len\":1000000000000000019884624838656,"
            "\"l\":[1,2,3]}");
    const char *s = "";
    int64_t i = 0;
    double f = 0;
    bool b = false;

    CHECK(json_type(r) == JSON_OBJECT && json_count(r) == 9);
    CHECK(json_int(json_get(r, "a"), &i) && i == 8); /* case matters */
    CHECK(json_int(json_get(r, "A"), &i) && i == 7);
    CHECK(json_string(json_get(r, "s"), &s) && !strcmp(s, "x"));
    CHECK(json_bool(json_get(r, "t"), &b) && b);
    CHECK(json_number(json_get(r, "f"), &f) && f == 0.25);
    CHECK(!json_int(json_get(r, "f"), &i) && i == 7);
    CHECK(json_int(json_get(r, "big"), &i) && i == 1ll << 53);
    CHECK(json_number(json_get(r, "len"), &f) && f == 1e30);
    CHECK(!json_int(json_get(r, "len"), &i));
    CHECK(json_type(json_get(r, "n")) == JSON_NULL);
    CHECK(!json_bool(json_get(r, "n"), &b) &&
          !json_string(json_get(r, "n"), &s));
    CHECK(!json_get(r, "absent") && !json_get(NULL, "a"));
    CHECK(!json_get(json_get(r, "a"), "a") && !json_int(NULL, &i));
    CHECK(json_count(json_get(r, "l")) == 3 && json_count(NULL) == 0);
    CHECK(!strcmp(json_key(json_first(r)), "A"));
    CHECK(!strcmp(json_key(json_after(json_first(r))), "a"));
    CHECK(!strcmp(json_key(r), ""));
    json_free(d);
}

static void test_many_members(void)
{
    struct json_writer w;
    struct json_doc *d;
    char key[32];
    int64_t v;

    jw_init(&w, 0);
    jw_begin(&w, '{');
    for (int i = 0; i < 100000; i++) {
        snprintf(key, sizeof(key), "model.layers.%d", i);
        jw_key(&w, key);
        jw_int(&w, i);
    }
    jw_end(&w, '}');
    CHECK(!w.failed && json_parse(&d, w.text, w.len, "'t'", &e) == 0);
    for (int i = 0; i < 100000; i++) { /* linear lookup would take minutes */
        snprintf(key, sizeof(key), "model.layers.%d", i);
        CHECK(json_int(json_get(json_root(d), key), &v) && v == i);
    }
    CHECK(!json_get(json_root(d), "model.layers.100000"));
    json_free(d);
    free(w.text);
}

static void test_writer(void)
{
    static const char text[] = "{\"a\":[1,2.5,-0.1,1e-300,[],{}],"
                               "\"q\\\"\\\\\\n\\u0001\":null,\"t\":true}";
    struct json_doc *d;
    struct json_writer w;

    jw_init(&w, 0);
    jw_value(&w, value(&d, text));
    CHECK(!strcmp(w.text, text));
    json_free(d);
    free(w.text);

    jw_init(&w, 2);
    jw_begin(&w, '{');
    jw_key(&w, "a");
    jw_begin(&w, '[');
    jw_int(&w, 1);
    jw_raw(&w, "{\"x\":1}");
    jw_end(&w, ']');
    jw_key(&w, "b");
    jw_number(&w, NAN);
    jw_key(&w, "c");
    jw_string(&w, "\xff");
    jw_end(&w, '}');
    CHECK(!strcmp(w.text, "{\n  \"a\": [\n    1,\n    {\"x\":1}\n  ],\n"
                          "  \"b\": null,\n  \"c\": \"\xef\xbf\xbd\"\n}"));
    free(w.text);

    jw_init(&w, 0);
    jw_number(&w, 0.1);
    jw_number(&w, 1.0 / 3);
    CHECK(!strcmp(w.text, "0.1,0.3333333333333333"));
    free(w.text);

    jw_init(&w, 0);
    jw_begin(&w, '{');
    jw_known_text(&w, "a", NULL);
    jw_known_text(&w, "a", "");
    jw_known_text(&w, "b", "x");
    jw_known_number(&w, "a", -INFINITY);
    jw_known_number(&w, "c", 0);
    jw_known_count(&w, "a", -1);
    jw_known_count(&w, "d", 0);
    jw_end(&w, '}');
    CHECK(!strcmp(w.text, "{\"b\":\"x\",\"c\":0,\"d\":0}"));
    free(w.text);
}

int main(void)
{
    test_refused();
    test_every_prefix();
    test_depth();
    test_values();
    test_many_members();
    test_writer();
    return 0;
}
