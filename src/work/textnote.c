/* textnote.c - see textnote.h. */
#include "work/textnote.h"

#include <string.h>

void text_note_take(struct text_note *t, const struct json *program)
{
    const struct json *text = json_get(program, "text");
    const char *hex;

    if (!json_string(json_get(text, "sha256"), &hex) ||
        strspn(hex, "0123456789abcdef") != SHA256_HEX || hex[SHA256_HEX])
        return;
    strcpy(t->sha256, hex);
    (void)!json_int(json_get(text, "sequences"), &t->sequences);
    (void)!json_int(json_get(text, "ids"), &t->ids);
}

int text_note_head(struct text_note *t, const char *head, struct err *e)
{
    struct json_doc *d;

    if (!head)
        return 0;
    if (json_parse(&d, head, strlen(head), "HEAD", e) < 0)
        return e->code;
    for (const struct json *v = json_first(json_get(json_root(d), "programs"));
         v; v = json_after(v))
        text_note_take(t, v);
    json_free(d);
    return 0;
}
