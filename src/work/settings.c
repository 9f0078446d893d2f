/* settings.c - see settings.h. */
#include "work/settings.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SETTINGS_MAX = 64 << 20 };

int settings_none(const char *dir, int errnum, struct err *e)
{
    const char *what =
        errnum ? strerror(errnum) : "no work directory of forge quantize";
    int code = errnum ? err_open_code(errnum) : E_NOINPUT;
    int n = (int)strlen(dir);
    char run[PATH_MAX];
    struct stat st;

    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (snprintf(run, sizeof(run), "%.*s.work", n, dir) >= (int)sizeof(run) ||
        stat(run, &st) || !S_ISDIR(st.st_mode))
        return err_set(e, code, "'%s': %s", dir, what);
    return err_set(e, code, "'%s': %s (did you mean '%s'?)", dir, what, run);
}

int settings_read(struct work_settings *s, const char *work, struct err *e)
{
    struct stat st;

    s->doc = NULL;
    if ((size_t)snprintf(s->path, sizeof(s->path), "%s/%s", work,
                         SETTINGS_FILE) >= sizeof(s->path))
        return err_set(e, E_DATA, "'%.200s...': path is too long", work);
    if (stat(work, &st))
        return settings_none(work, errno, e);
    if (!S_ISDIR(st.st_mode) || access(s->path, F_OK))
        return settings_none(work, 0, e);
    if (json_read_file(&s->doc, s->path, SETTINGS_MAX, e) < 0)
        return e->code;
    if (json_type(json_root(s->doc)) == JSON_OBJECT)
        return 0;
    settings_release(s);
    return err_set(e, E_DATA, "'%s': no JSON object", s->path);
}

const char *settings_text(const struct work_settings *s, const char *name)
{
    const char *v;

    return json_string(json_get(json_root(s->doc), name), &v) ? v : "";
}

int64_t settings_number(const struct work_settings *s, const char *name,
                        int64_t none)
{
    int64_t v;

    return json_int(json_get(json_root(s->doc), name), &v) && v >= 0 ? v : none;
}

bool settings_flag(const struct work_settings *s, const char *name)
{
    bool v;

    return json_bool(json_get(json_root(s->doc), name), &v) && v;
}

void settings_release(struct work_settings *s)
{
    json_free(s->doc);
    s->doc = NULL;
}
