/* upstream.c - see upstream.h. */
#include "tokens/upstream.h"

#include <string.h>
#include <sys/stat.h>

int upstream_error(const struct json *record, int fd, struct err *e)
{
    const char *message;
    struct stat st;
    int64_t status;

    if (json_count(record) != 2 ||
        !json_string(json_get(record, "error"), &message) ||
        !json_int(json_get(record, "exit"), &status))
        return 0;
    if (status < -E_USAGE || status > -E_CONFIG)
        status = -E_DATA;
    err_set(e, (int)-status, "%s", message);
    e->told = !fstat(fd, &st) && S_ISFIFO(st.st_mode);
    return e->code;
}

static int check_line(const struct upstream *u, struct err *e)
{
    struct json_doc *doc;
    struct err ignored;
    int rc;

    if (u->len > UPSTREAM_MAX || !memmem(u->line, u->len, "\"error\"", 7))
        return 0;
    if (json_parse(&doc, u->line, u->len, "", &ignored) < 0)
        return ignored.code == E_TEMP ? (*e = ignored, E_TEMP) : 0;
    rc = upstream_error(json_root(doc), u->fd, e);
    json_free(doc);
    return rc;
}

/* Whether the text is JSON lines, by its first character. */
static void begin(struct upstream *u, const char *text, size_t n)
{
    static const char blank[] =
        " \t\r\n\xef\xbb\xbf"; /* or a byte order mark */
    size_t i = 0;

    while (i < n && text[i] && strchr(blank, text[i]))
        i++;
    u->begun = i < n;
    if (u->begun)
        u->lines = text[i] == '{';
}

int upstream_watch(struct upstream *u, const char *text, size_t n,
                   struct err *e)
{
    int rc = 0;

    if (!u->begun)
        begin(u, text, n);
    if (u->begun && !u->lines)
        return 0;
    if (!n)
        return check_line(u, e);
    while (n && !rc) {
        const char *end = memchr(text, '\n', n);
        size_t k = end ? (size_t)(end - text) : n;

        if (u->len + k <= UPSTREAM_MAX)
            memcpy(u->line + u->len, text, k);
        u->len = u->len + k <= UPSTREAM_MAX ? u->len + k : UPSTREAM_MAX + 1;
        if (end) {
            rc = check_line(u, e);
            u->len = 0;
        }
        k += end != NULL;
        text += k;
        n -= k;
    }
    return rc;
}
