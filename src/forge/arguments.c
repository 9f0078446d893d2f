/* arguments.c - see arguments.h. */
#include "forge/arguments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io/file.h"
#include "common/io/utf8.h"
#include "forge/env.h"

/* Append a component to a resolved path. */
static int append(char to[PATH_MAX], const char *name, size_t n, struct err *e)
{
    size_t len = strlen(to);

    if (!n || (n == 1 && *name == '.'))
        return 0;
    if (n == 2 && !strncmp(name, "..", 2)) {
        char *slash = strrchr(to, '/');

        *(slash == to ? to + 1 : slash) = 0;
        return 0;
    }
    if (len + n + 2 > PATH_MAX)
        return err_set(e, E_USAGE, "'%.200s...': path is too long", to);
    if (to[len - 1] != '/')
        to[len++] = '/';
    memcpy(to + len, name, n);
    to[len + n] = 0;
    return 0;
}

static bool is_utf8(const char *path)
{
    const unsigned char *p = (const unsigned char *)path;
    const unsigned char *end = p + strlen(path);

    while (p < end) {
        size_t n = utf8_length(p, end);

        if (!n)
            return false;
        p += n;
    }
    return true;
}

int path_absolute(const char *path, char to[PATH_MAX], struct err *e)
{
    char head[PATH_MAX], *slash;
    const char *rest = path;

    if (strlen(path) >= PATH_MAX)
        return err_set(e, E_USAGE, "'%.200s...': path is too long", path);
    if (!is_utf8(path)) /* it goes into settings.json */
        return err_set(e, E_USAGE, "'%s': the path is no UTF-8", path);
    if (realpath(path, to))
        return 0;
    strcpy(head, path); /* shortened until it exists */
    while ((slash = strrchr(head, '/'))) {
        rest = path + (slash - head);
        *(slash == head ? slash + 1 : slash) = 0;
        if (realpath(head, to) || slash == head)
            break;
    }
    if (!slash && !realpath(".", to))
        return err_set(e, E_IO, "'.':");
    if (!slash)
        rest = path;
    while (*rest) {
        size_t n = strcspn(rest, "/");

        if (append(to, rest, n, e) < 0)
            return e->code;
        rest += n + (rest[n] == '/');
    }
    return 0;
}

bool path_inside(const char *a, const char *b)
{
    size_t n = strlen(b);

    return !strncmp(a, b, n) && (!a[n] || a[n] == '/' || b[n - 1] == '/');
}

/* ---- Hugging Face ids ---- */

/* The local cache of Hugging Face's libraries (huggingface_hub, "Environment
 * variables"). */
static void hub_cache(char to[PATH_MAX])
{
    static const struct {
        const char *variable, *below;
    } places[] = { { "HF_HUB_CACHE", "" },
                   { "HF_HOME", "/hub" },
                   { "XDG_CACHE_HOME", "/huggingface/hub" },
                   { "HOME", "/.cache/huggingface/hub" } };
    size_t i = 0;

    while (i < ARRAY_LEN(places) - 1 && !*env_text(places[i].variable))
        i++;
    snprintf(to, PATH_MAX, "%s%s", env_text(places[i].variable),
             places[i].below);
}

/* Whether s has the form ORG/NAME or ORG/NAME@REVISION; none of the three begins
 * with a dot. */
static bool is_hub_id(const char *s)
{
    const char *slash = strchr(s, '/'), *at = slash ? strchr(slash, '@') : NULL;

    return slash && slash > s && slash[1] && slash[1] != '@' &&
           !strchr(slash + 1, '/') && *s != '.' && slash[1] != '.' &&
           !(at && (!at[1] || at[1] == '.')) && strlen(s) < 256;
}

/* The commit that refs/REF names, in rev[256], which may hold ref. */
static bool ref_revision(const char *repository, const char *ref, char *rev)
{
    char path[PATH_MAX + 264], *text;
    struct err ignored;
    size_t len;
    bool good;

    snprintf(path, sizeof(path), "%s/refs/%s", repository, ref);
    if (file_slurp(&text, &len, path, 255, &ignored) < 0)
        return false;
    text[strcspn(text, "\n")] = 0;
    good = *text && !strchr(text, '/') && *text != '.' && strlen(text) < 256;
    if (good)
        strcpy(rev, text);
    free(text);
    return good;
}

int find_model(const char **model, char to[PATH_MAX], struct err *e)
{
    char cache[PATH_MAX], repository[PATH_MAX], rev[256] = "";
    const char *slash = strchr(*model, '/'), *at;
    struct stat st;

    if (!stat(*model, &st))
        return S_ISDIR(st.st_mode) ?
                   0 :
                   err_set(e, E_NOINPUT,
                           "'%s': a file: want a checkpoint's directory",
                           *model);
    if (!is_hub_id(*model))
        return err_set(e, E_NOINPUT, "'%s': no such directory", *model);
    at = strchr(slash, '@');
    hub_cache(cache);
    if ((size_t)snprintf(repository, PATH_MAX, "%s/models--%.*s--%.*s", cache,
                         (int)(slash - *model), *model,
                         (int)strcspn(slash + 1, "@"), slash + 1) >= PATH_MAX)
        return err_set(e, E_USAGE, "'%.200s...': path is too long", cache);
    if (at)
        snprintf(rev, sizeof(rev), "%s", at + 1);
    if (!ref_revision(repository, at ? rev : "main", rev) && !at)
        return err_set(e, E_NOINPUT,
                       "'%s': no such directory, and no such model in the "
                       "Hugging Face cache '%.200s'",
                       *model, cache);
    if ((size_t)snprintf(to, PATH_MAX, "%s/snapshots/%s", repository, rev) >=
            PATH_MAX ||
        stat(to, &st) || !S_ISDIR(st.st_mode))
        return err_set(e, E_NOINPUT,
                       "'%s': the Hugging Face cache '%.200s' has no snapshot "
                       "'%s' of it",
                       *model, cache, rev);
    *model = to;
    return 0;
}

/* ---- texts and outputs ---- */

int only_text(const struct opt_list *l, const char **text, struct err *e)
{
    if (l->count > 1)
        return err_set(e, E_USAGE,
                       "--text is given twice: forge text -w 1,1 MODEL '%s' "
                       "'%s' makes one text of several",
                       l->item[0], l->item[1]);
    if (l->count)
        *text = l->item[0];
    return 0;
}

int check_text(const char *path, struct err *e)
{
    struct stat st;

    if (!path)
        return err_set(e, E_USAGE, "want --text FILE (try --help)");
    if (!strcmp(path, "-"))
        return isatty(STDIN_FILENO) ?
                   err_set(e, E_USAGE,
                           "--text -: standard input is a terminal") :
                   0;
    if (stat(path, &st))
        return err_set(e, E_NOINPUT, "'%s': no such file", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, E_NOINPUT, "'%s': not a regular file", path);
    if (access(path, R_OK))
        return err_set(e, E_NOINPUT, "'%s': cannot be read", path);
    return st.st_size ? 0 : err_set(e, E_DATA, "'%s': is empty", path);
}

/* What the name is longer by until all is complete. */
#define TMP_LONGEST ".tmp.4194304.XXXXXX"

int check_out(const char *given, const char *out, const char *model,
              struct err *e)
{
    char parent[PATH_MAX];
    struct stat st;

    snprintf(parent, sizeof(parent), "%s", given);
    for (size_t n = strlen(parent); n > 1 && parent[n - 1] == '/'; n--)
        parent[n - 1] = 0;
    if (!lstat(parent, &st))
        return err_set(e, E_CREATE, "'%s': exists already", given);
    snprintf(parent, sizeof(parent), "%s", out);
    *(strrchr(parent, '/') == parent ? parent + 1 : strrchr(parent, '/')) = 0;
    if (stat(parent, &st) || !S_ISDIR(st.st_mode) ||
        access(parent, W_OK | X_OK))
        return err_set(e, E_CREATE, "'%s': cannot be created in '%s'", given,
                       parent);
    if (strlen(strrchr(out, '/') + 1) > NAME_MAX - strlen(TMP_LONGEST))
        return err_set(e, E_CREATE, "'%s': the name is too long", given);
    if (path_inside(out, model))
        return err_set(e, E_CREATE, "'%s': lies inside the model '%s'", given,
                       model);
    return 0;
}

int check_plain(const char *model, bool packed, struct err *e)
{
    return !packed ?
               0 :
               err_set(
                   e, E_CONFIG,
                   "'%s': is quantized to 4 bits already; 'forge repack %s OUT "
                   "--layout NAME' stores it in another layout",
                   model, model);
}
