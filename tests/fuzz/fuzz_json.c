/* Any text: refused, or read, written and read again as the same. */
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char *rewrite(const char *text, size_t n)
{
    struct json_writer w;
    struct json_doc *d;
    struct err e;

    if (json_parse(&d, text, n, "fuzz", &e) < 0)
        return NULL;
    for (const struct json *v = json_first(json_root(d)); v; v = json_after(v))
        if (json_type(json_root(d)) == JSON_OBJECT &&
            json_get(json_root(d), json_key(v)) != v)
            __builtin_trap(); /* a member is not found under its name */
    jw_init(&w, 0);
    jw_value(&w, json_root(d));
    json_free(d);
    return w.text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *exact = malloc(n ? n : 1), *once, *twice;

    memcpy(exact, data, n);
    once = rewrite(exact, n);
    free(exact);
    if (!once)
        return 0;
    twice = rewrite(once, strlen(once));
    if (!twice || strcmp(once, twice))
        __builtin_trap(); /* what we write is what we read */
    free(once);
    free(twice);
    return 0;
}
