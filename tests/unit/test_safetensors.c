/* Every rule of the safetensors header, broken once: refused, with a message
 * that names the rule. */
#include <fcntl.h>
#include <string.h>

#include "checkpoint/safetensors.h"
#include "test.h"

static struct err e;

/* Parse a header over `data` bytes of payload. */
static int parse(const char *text, uint64_t data)
{
    struct ck_list l = { 0 };
    size_t len = strlen(text);
    int r = safetensors_parse(&l, text, len, 8 + len + data, "'f'", &e);

    ck_list_release(&l);
    return r;
}

static void refused(const char *text, uint64_t data, const char *why)
{
    CHECK(parse(text, data) == E_DATA);
    CHECK(e.code == E_DATA);
    if (!strstr(e.msg, why)) {
        fprintf(stderr, "%s\nwant '%s', got '%s'\n", text, why, e.msg);
        exit(1);
    }
}

#define T(dtype, shape, offsets)                                               \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void accepts(void)
{
    CHECK(parse("{}", 0) == 0);
    CHECK(parse("{}   ", 0) == 0);
    CHECK(parse("{\"__metadata__\":{\"format\":\"pt\"}}", 0) == 0);
    CHECK(parse("{\"__metadata__\":null}", 0) == 0);
    CHECK(parse("{\"a\":" T("F32", "[]", "[0,4]") "}", 4) == 0);
    CHECK(parse("{\"a\":" T("F32", "[0]", "[0,0]") "}", 0) == 0);
    CHECK(parse("{\"a\":" T("F32", "[4294967296,4294967296,0]", "[0,0]") "}",
                0) == E_DATA); /* overflows before the 0, as in the original */
    CHECK(parse("{\"a\":" T("F32", "[0,9007199254740992,4096]", "[0,0]") "}",
                0) == 0);
    /* any order in the text, an empty tensor between two others */
    CHECK(
        parse("{\"b\":" T("U8", "[3]", "[2,5]") ",\"z\":" T(
                  "U8", "[0]", "[2,2]") ",\"a\":" T("BF16", "[1]", "[0,2]") "}",
              5) == 0);
    CHECK(parse("{\"a\":" T("I8", "[1,1,1,1,1,1,1,1]", "[0,1]") "}", 1) == 0);
    CHECK(parse("{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":"
                "[0,1],\"more\":1}}",
                1) == 0);
}

static void order(void)
{
    static const char text[] = "{\"b\":" T("U8", "[3]", "[2,5]") ",\"a\":" T(
        "BF16", "[1]", "[0,2]") "}";
    struct ck_list l = { 0 };

    CHECK(safetensors_parse(&l, text, strlen(text), 8 + strlen(text) + 5, "'f'",
                            &e) == 0);
    CHECK(l.count == 2);
    CHECK(strcmp(l.item[0].name, "a") == 0 && l.item[0].dtype == DT_BF16);
    CHECK(l.item[0].offset == 8 + strlen(text));
    CHECK(l.item[1].offset == 8 + strlen(text) + 2 && l.item[1].bytes == 3);
    ck_list_release(&l);
}

static void text_rules(void)
{
    refused("", 0, "does not begin with '{'");
    refused(" {}", 0, "does not begin with '{'");
    refused("[]", 0, "does not begin with '{'");
    refused("\xef\xbb\xbf{}", 0, "does not begin with '{'");
    refused("{}\n", 0, "does not end with '}' and blanks");
    refused("{}\t", 0, "does not end with '}' and blanks");
    refused("{} x", 0, "does not end with '}' and blanks");
    refused("{", 0, "does not end with '}'");
    refused("{} {}", 0, "'f'");
    refused("{\"a\":" T("U8", "[1]", "[0,1]") ",}", 1, "'f'");
    refused(
        "{\"a\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("U8", "[1]", "[1,2]") "}",
        2, "'f'");
    refused("{\"\\u0000\":" T("U8", "[1]", "[0,1]") "}", 1, "'f'");
    refused("{\"\xff\":" T("U8", "[1]", "[0,1]") "}", 1, "'f'");
    refused("{\"__metadata__\":[]}", 0, "'__metadata__' is no object");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "'a' is no string");
}

static void field_rules(void)
{
    refused("{\"a\":3}", 0, "is no object");
    refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "'dtype'");
    refused("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "'shape'");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "'data_offsets'");
    refused("{\"a\":" T("F33", "[1]", "[0,1]") "}", 1,
            "dtype 'F33' is not supported");
    refused("{\"a\":" T("U4", "[2]", "[0,1]") "}", 1,
            "dtype 'U4' is not supported");
    refused("{\"a\":" T("u8", "[1]", "[0,1]") "}", 1, "is not supported");
    refused("{\"a\":" T("U8", "[-1]", "[0,1]") "}", 1, "'-1' is no size");
    refused("{\"a\":" T("U8", "[\"1\"]", "[0,1]") "}", 1, "'shape'");
    refused("{\"a\":" T("U8", "[0.5]", "[0,1]") "}", 1, "'0.5' is no size");
    refused("{\"a\":" T("U8", "[1.0]", "[0,1]") "}", 1, "'1.0' is no size");
    refused("{\"a\":" T("U8", "[1]", "[0,1e0]") "}", 1, "'1e0' is no size");
    refused("{\"a\":" T("U8", "[1]", "[-0,1]") "}", 1, "'-0' is no size");
    refused("{\"a\":" T("U8", "1", "[0,1]") "}", 1, "'shape'");
    refused("{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1,
            "more than 8 dimensions");
    refused("{\"a\":" T("U8", "[1]", "[0]") "}", 1, "'data_offsets'");
    refused("{\"a\":" T("U8", "[1]", "[0,1,1]") "}", 1, "'data_offsets'");
    refused("{\"a\":" T("U8", "[1]", "[-1,0]") "}", 1, "'-1' is no size");
    refused("{\"a\":" T("U8", "[1]", "[1,0]") "}", 1, "end before they begin");
}

static void size_rules(void)
{
    refused("{\"a\":" T("F32", "[1]", "[0,3]") "}", 3, "3 bytes by its offset");
    refused("{\"a\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", 0,
            "the shape is too large");
    refused("{\"a\":" T("F64", "[4503599627370496,1024]", "[0,0]") "}", 0,
            "the shape is too large");
    refused("{\"a\":" T("U8", "[1]",
                        "[18446744073709551615,18446744073709"
                        "551615]") "}",
            1, "'f'");
    refused("{\"a\":" T("U8", "[1]", "[1,2]") "}", 2, "begins at 1");
    refused(
        "{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("U8", "[1]", "[2,3]") "}",
        3, "begins at 2"); /* a hole */
    refused(
        "{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[1,3]") "}",
        3, "begins at 1"); /* an overlap */
    refused(
        "{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[0,2]") "}",
        2, "begins at 0");
    refused("{\"a\":" T("U8", "[2]", "[0,2]") "}", 1, "cut short");
    refused("{\"a\":" T("U8", "[2]", "[0,2]") "}", 3, "more than it says");
    refused("{}", 1, "more than it says");
}

/* ---- the eight bytes before the header ---- */

static int header(const void *bytes, size_t n)
{
    char name[] = "/tmp/test_safetensorsXXXXXX", *text;
    int fd = mkstemp(name), r;
    FILE *out = fdopen(fd, "wb");
    struct file *f;
    size_t len;

    CHECK(out && fwrite(bytes, 1, n, out) == n && fclose(out) == 0);
    CHECK(file_open(&f, AT_FDCWD, name, &e) == 0);
    remove(name);
    r = safetensors_header(f, "'f'", &text, &len, &e);
    free(text);
    file_close(f);
    return r;
}

static void length_rules(void)
{
    CHECK(header("", 0) == E_DATA && strstr(e.msg, "no safetensors"));
    CHECK(header("\0\0\0\0\0\0\0", 7) == E_DATA);
    CHECK(header("\2\0\0\0\0\0\0\0{}", 10) == 0);
    CHECK(header("\3\0\0\0\0\0\0\0{}", 10) == E_DATA);
    CHECK(strstr(e.msg, "header of 3 bytes in a file of 10"));
    CHECK(header("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10) == E_DATA);
    CHECK(strstr(e.msg, "at most 100000000"));
    CHECK(header("\0\xe1\xf5\5\0\0\0\0{}", 10) == E_DATA); /* 10^8 */
    CHECK(strstr(e.msg, "in a file of 10"));
    CHECK(header("\1\xe1\xf5\5\0\0\0\0{}", 10) == E_DATA); /* 10^8 + 1 */
    CHECK(strstr(e.msg, "at most 100000000"));
}

int main(void)
{
    accepts();
    order();
    text_rules();
    field_rules();
    size_rules();
    length_rules();
    return 0;
}
