/* inputs.c - see inputs.h. */
#include "work/inputs.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/expertmap.h"

static const char *const other_name[INPUT_OTHERS] = {
    [INPUT_TEXT] = "text",
    "config.json",
    "tokenizer.json",
    EXPERT_MAP_FILE,
    "generation_config.json"
};

/* ---- marks ---- */

static void set_host(char host[HOST_LEN])
{
    memset(host, 0, HOST_LEN);
    gethostname(host, HOST_LEN - 1);
}

static void take(struct input_file *f, const struct stat *st)
{
    f->size = (uint64_t)st->st_size;
    f->inode = st->st_ino;
    f->mtime = st->st_mtim.tv_sec;
    f->mtime_ns = st->st_mtim.tv_nsec;
    f->ctime = st->st_ctim.tv_sec;
    f->ctime_ns = st->st_ctim.tv_nsec;
}

int input_stat(struct input_file *f, const char *model, const char *name,
               struct err *e)
{
    char path[PATH_MAX + 256];
    struct stat st;

    *f = (struct input_file){ .size = 0 };
    if (strlen(name) >= sizeof(f->name))
        return err_set(e, E_DATA, "'%s/%s': the name is too long", model, name);
    strcpy(f->name, name);
    snprintf(path, sizeof(path), "%s/%s", model, name);
    if (stat(path, &st))
        return err_set(e, E_NOINPUT, "'%s':", path);
    take(f, &st);
    return 0;
}

static int other_stat(struct input_file *f, int i, const char *model,
                      const char *text, struct err *e)
{
    struct stat st;
    int rc;

    if (i != INPUT_TEXT) {
        rc = input_stat(f, model, other_name[i], e);
        return rc == E_NOINPUT ? 0 : rc;
    }
    *f = (struct input_file){ .name = "text" };
    if (*text && !stat(text, &st))
        take(f, &st);
    return 0;
}

int inputs_note(struct known_inputs *in, const char *model, const char *text,
                struct err *e)
{
    set_host(in->host);
    in->others = true;
    for (int i = 0; i < INPUT_OTHERS; i++)
        if (other_stat(&in->other[i], i, model, text, e) < 0)
            return e->code;
    return 0;
}

bool input_unchanged(const struct input_file *a, const struct input_file *b)
{
    return a->size == b->size && a->inode == b->inode && a->mtime == b->mtime &&
           a->mtime_ns == b->mtime_ns && a->ctime == b->ctime &&
           a->ctime_ns == b->ctime_ns && !strcmp(a->name, b->name);
}

/* The same on another host, by size and modification time: it may be a copy. */
static bool alike(const struct input_file *a, const struct input_file *b)
{
    return a->size == b->size && a->mtime == b->mtime &&
           !strcmp(a->name, b->name);
}

static int changed(const char *path, const char *name, struct err *e)
{
    return err_set(e, E_DATA,
                   "'%s%s%s': has changed since the run began: give the "
                   "command again",
                   path, *name ? "/" : "", name);
}

int inputs_same(const struct known_inputs *in, const char *model,
                const char *text, struct err *e)
{
    bool (*same)(const struct input_file *, const struct input_file *) = alike;
    char host[HOST_LEN];
    struct input_file now;

    set_host(host);
    if (!strcmp(host, in->host))
        same = input_unchanged;
    for (size_t i = 0; i < in->files; i++) {
        if (input_stat(&now, model, in->file[i].name, e) < 0)
            return e->code;
        if (!same(&now, &in->file[i]))
            return changed(model, now.name, e);
    }
    for (int i = 0; in->others && i < INPUT_OTHERS; i++) {
        if (other_stat(&now, i, model, text, e) < 0)
            return e->code;
        if (same(&now, &in->other[i]) || (i == INPUT_TEXT && !now.inode))
            continue;
        return i == INPUT_TEXT ? changed(text, "", e) :
                                 changed(model, now.name, e);
    }
    return 0;
}

int inputs_check(const char *work, struct err *e)
{
    struct work_settings s;
    struct known_inputs in;
    int rc;

    if (!work)
        return 0;
    if (settings_read(&s, work, e) < 0)
        return e->code;
    rc = inputs_read(&in, &s, e);
    if (!rc)
        rc = inputs_same(&in, settings_text(&s, "model"),
                         settings_text(&s, "text"), e);
    inputs_release(&in);
    settings_release(&s);
    return rc;
}

/* ---- settings.json ---- */

static void put_text(struct json_writer *w, const char *name, const char *v)
{
    jw_key(w, name), jw_string(w, v);
}

/* Write a file's numbers as text: JSON numbers beyond 2^53 lose bits. */
static void put_file(struct json_writer *w, const struct input_file *f)
{
    char text[64];

    jw_begin(w, '{');
    put_text(w, "name", f->name);
    snprintf(text, sizeof(text), "%" PRIu64, f->size);
    put_text(w, "size", text);
    snprintf(text, sizeof(text), "%" PRIu64, f->inode);
    put_text(w, "inode", text);
    snprintf(text, sizeof(text), "%" PRId64 ".%09" PRId64, f->mtime,
             f->mtime_ns);
    put_text(w, "mtime", text);
    snprintf(text, sizeof(text), "%" PRId64 ".%09" PRId64, f->ctime,
             f->ctime_ns);
    put_text(w, "ctime", text);
    snprintf(text, sizeof(text), "%016" PRIx64, f->hash);
    put_text(w, "xxh3", text);
    jw_end(w, '}');
}

void inputs_write(struct json_writer *w, const struct known_inputs *in)
{
    put_text(w, "host", in->host);
    jw_key(w, "weights"), jw_begin(w, '[');
    for (size_t i = 0; i < in->files; i++)
        put_file(w, &in->file[i]);
    jw_end(w, ']');
    jw_key(w, "inputs"), jw_begin(w, '[');
    for (int i = 0; i < INPUT_OTHERS && in->others; i++)
        put_file(w, &in->other[i]);
    jw_end(w, ']');
}

static bool get_file(const struct json *v, struct input_file *f)
{
    const char *name, *size, *inode, *mtime, *ctime, *hash;

    if (!json_string(json_get(v, "name"), &name) ||
        !json_string(json_get(v, "size"), &size) ||
        !json_string(json_get(v, "inode"), &inode) ||
        !json_string(json_get(v, "mtime"), &mtime) ||
        !json_string(json_get(v, "ctime"), &ctime) ||
        !json_string(json_get(v, "xxh3"), &hash) || !*name ||
        strchr(name, '/') || strlen(name) >= sizeof(f->name))
        return false;
    strcpy(f->name, name);
    return sscanf(size, "%" SCNu64, &f->size) == 1 &&
           sscanf(inode, "%" SCNu64, &f->inode) == 1 &&
           sscanf(mtime, "%" SCNd64 ".%" SCNd64, &f->mtime, &f->mtime_ns) ==
               2 &&
           sscanf(ctime, "%" SCNd64 ".%" SCNd64, &f->ctime, &f->ctime_ns) ==
               2 &&
           sscanf(hash, "%" SCNx64, &f->hash) == 1;
}

/* Read a list into file[0..most-1]; its length, or -1. */
static int64_t get_files(const struct json *list, struct input_file *file,
                         size_t most)
{
    size_t n = 0;

    if (!list || json_type(list) != JSON_ARRAY || json_count(list) > most)
        return -1;
    for (const struct json *v = json_first(list); v; v = json_after(v))
        if (!get_file(v, &file[n++]))
            return -1;
    return (int64_t)n;
}

static int wrong(const struct work_settings *s, const char *name, struct err *e)
{
    return err_set(e, E_DATA, "'%s': \"%s\" is not what forge writes", s->path,
                   name);
}

int inputs_read(struct known_inputs *in, const struct work_settings *s,
                struct err *e)
{
    const struct json *list = json_get(json_root(s->doc), "weights");
    const struct json *others = json_get(json_root(s->doc), "inputs");
    size_t most = list ? json_count(list) : 0;
    int64_t n;

    *in = (struct known_inputs){ .files = 0 };
    snprintf(in->host, sizeof(in->host), "%s", settings_text(s, "host"));
    in->file = mem_zero(most, sizeof(*in->file), "settings", e);
    if (!in->file)
        return e->code;
    n = get_files(list, in->file, most);
    if (n < 0)
        return wrong(s, "weights", e);
    in->files = (size_t)n;
    n = others ? get_files(others, in->other, INPUT_OTHERS) : 0;
    if (n && n != INPUT_OTHERS) /* settings of an earlier version have none */
        return wrong(s, "inputs", e);
    in->others = n > 0;
    return 0;
}

void inputs_release(struct known_inputs *in)
{
    free(in->file);
    *in = (struct known_inputs){ .files = 0 };
}
