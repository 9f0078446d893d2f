/* outputs.c - see outputs.h. */
#include "report/outputs.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_file(const char *path)
{
    return path && strcmp(path, "-") != 0;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* The absolute path of a file, which need not be there yet. */
static bool resolve(const char *path, char to[PATH_MAX])
{
    const char *name = last_part(path);
    char dir[PATH_MAX];
    size_t n;

    if (realpath(path, to))
        return true;
    if (name == path)
        strcpy(dir, ".");
    else if ((size_t)snprintf(dir, sizeof(dir), "%.*s", (int)(name - path),
                              path) >= sizeof(dir))
        return false;
    if (!realpath(dir, to))
        return false;
    n = strlen(to);
    return (size_t)snprintf(to + n, PATH_MAX - n, "%s%s",
                            to[n - 1] == '/' ? "" : "/", name) < PATH_MAX - n;
}

/* Devices and pipes take any number of outputs. */
static bool same(const char *a, const char *b)
{
    char at[2][PATH_MAX];
    struct stat st;

    return resolve(a, at[0]) && resolve(b, at[1]) && !strcmp(at[0], at[1]) &&
           (stat(a, &st) || S_ISREG(st.st_mode));
}

int outputs_check(const char *page, const char *json, const char *csv,
                  struct err *e)
{
    const struct {
        const char *option, *path;
    } to[] = { { "--output", is_file(page) ? page : NULL },
               { "--json", json },
               { "--csv", csv } };

    for (size_t i = 0; i < ARRAY_LEN(to); i++)
        for (size_t k = 0; k < i; k++)
            if (to[i].path && to[k].path && same(to[i].path, to[k].path))
                return err_set(e, E_USAGE, "%s and %s are one file, '%s'",
                               to[k].option, to[i].option, to[i].path);
    return 0;
}

/* ---- links ---- */

/* Append the path, with all but letters, digits, "-._~/" in percent. */
static size_t escape(char *to, size_t cap, size_t at, const char *path)
{
    for (; *path; path++) {
        unsigned char c = (unsigned char)*path;
        bool plain = c < 128 && (isalnum(c) || strchr("-._~/", c));

        if (cap - at < 4)
            return cap;
        at += (size_t)sprintf(to + at, plain ? "%c" : "%%%02X", c);
    }
    return at;
}

int outputs_link(char *to, size_t cap, const char *page, const char *file,
                 struct err *e)
{
    char from[PATH_MAX], path[PATH_MAX];
    const char *rest = last_part(file);
    size_t at = 0, common = 0;

    if (is_file(page) && resolve(page, from) && resolve(file, path)) {
        for (size_t i = 0; from[i] && from[i] == path[i]; i++)
            if (from[i] == '/')
                common = i + 1;
        for (const char *p = from + common; (p = strchr(p, '/')); p++)
            at = at < cap ? at + (size_t)snprintf(to + at, cap - at, "../") :
                            cap;
        rest = path + common;
    }
    at = at < cap ? escape(to, cap, at, rest) : cap;
    return at < cap ? 0 :
                      err_set(e, E_USAGE, "'%.200s': path is too long", file);
}
