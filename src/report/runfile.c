/* runfile.c - see runfile.h. */
#include "report/runfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"

enum { RUN_MAX = 1 << 20 };

/* \nnn, \t and so on inside $'...': the byte, and *in moves past it. */
static char escaped(const char **in)
{
    static const char from[] = "abtnvfrEe", to[] = "\a\b\t\n\v\f\r\033\033";
    const char *p = *in, *at;
    int v = 0, n = 0;

    for (; n < 3 && p[n] >= '0' && p[n] <= '7'; n++)
        v = v * 8 + p[n] - '0';
    *in += n ? n : 1;
    if (n)
        return (char)v;
    at = strchr(from, *p);
    return at && *p ? to[at - from] : *p;
}

/* Take the quoting off, in place: the value never gets longer. */
static bool unquote(char *value)
{
    const char *in = value;
    char *out = value;

    if (in[0] == '$' && in[1] == '\'') {
        for (in += 2; *in && *in != '\'';) {
            if (*in == '\\' && in[1]) {
                in++;
                *out++ = escaped(&in);
            } else {
                *out++ = *in++;
            }
        }
        if (*in != '\'' || in[1])
            return false;
    } else if (strcmp(in, "''") != 0) {
        while (*in) {
            if (*in == '\\' && !*++in)
                return false;
            *out++ = *in++;
        }
    }
    *out = 0;
    return true;
}

static bool is_name(const char *s)
{
    return *s &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                     "_0123456789") == strlen(s);
}

int runfile_read(struct runfile *r, const char *path, struct err *e)
{
    char *line, *next, *value;
    size_t len;

    *r = (struct runfile){ 0 };
    if (file_slurp(&r->text, &len, path, RUN_MAX, e) < 0)
        return e->code;
    for (line = r->text; *line; line = next) {
        next = strchr(line, '\n');
        if (!next || r->count == ARRAY_LEN(r->name))
            break;
        *next++ = 0;
        value = strchr(line, '=');
        if (!value)
            break;
        *value++ = 0;
        if (!is_name(line) || !unquote(value))
            break;
        r->name[r->count] = line;
        r->value[r->count++] = value;
    }
    if (!r->count || line != r->text + len) {
        err_set(e, E_DATA, "'%s': line %zu is not NAME=VALUE", path,
                r->count + 1);
        runfile_release(r);
        return e->code;
    }
    return 0;
}

const char *runfile_get(const struct runfile *r, const char *name)
{
    for (size_t i = 0; i < r->count; i++)
        if (!strcmp(r->name[i], name))
            return r->value[i];
    return "";
}

int64_t runfile_number(const struct runfile *r, const char *name, int64_t none)
{
    const char *s = runfile_get(r, name);
    char *end;
    long long v;

    errno = 0;
    v = strtoll(s, &end, 10);
    return !*s || *end || errno || v < 0 ? none : v;
}

void runfile_release(struct runfile *r)
{
    free(r->text);
    *r = (struct runfile){ 0 };
}
