/* sidecar.c - see sidecar.h. */
#include "checkpoint/sidecar.h"

#include <dirent.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/digests.h"
#include "checkpoint/expertmap.h"
#include "common/io/json.h"

#define MODULES_FILE "modules.json"

enum { CONFIG_MAX = 16 << 20, MODULES_MAX = 64 << 10 };

/* Whether a file of this name belongs to the model. */
static bool is_sidecar(const char *name, bool code, bool map)
{
    static const char *const wanted[] = { "tokenizer*.json",
                                          "tokenizer*.model",
                                          "*.tiktoken",
                                          "tiktoken.model",
                                          "special_tokens_map.json",
                                          "added_tokens.json",
                                          "vocab.json",
                                          "vocab.txt",
                                          "merges.txt",
                                          "spiece.model",
                                          "sentencepiece*.model",
                                          "chat_template*",
                                          "generation_config.json",
                                          "*processor_config.json",
                                          "tekken.json",
                                          MODULES_FILE,
                                          "config_sentence_transformers.json",
                                          "sentence_*_config.json",
                                          "LICENSE*",
                                          "LICENCE*",
                                          "NOTICE*",
                                          "USE_POLICY*" };

    if (*name == '.' || strstr(name, ".tmp."))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
        if (!fnmatch(wanted[i], name, 0))
            return true;
    return (code && !fnmatch("*.py", name, 0)) ||
           (map && !strcmp(name, EXPERT_MAP_FILE));
}

static int append(struct sidecars *s, const char *name, struct err *e)
{
    char *copy = mem_text(name, strlen(name), name, e);

    if (!copy)
        return e->code;
    if (mem_grow(&s->name, (s->n + 1) * sizeof(*s->name), name, e)) {
        free(copy);
        return e->code;
    }
    s->name[s->n++] = copy;
    return 0;
}

/* ---- modules ---- */

/* Add the file DIR/FILE, unless it is too long. */
static int add_module_file(struct sidecars *s, const struct modeldir *d,
                           const char *name, bool warn, struct err *e)
{
    struct file *f;
    uint64_t size;
    int rc = modeldir_file(d, name, &f, e);

    if (rc)
        return rc;
    size = file_size(f);
    file_close(f);
    if (size <= SIDECAR_MAX)
        return append(s, name, e);
    if (warn)
        warning("'%s/%s': will not be copied: %" PRIu64 " bytes, more than %d",
                d->path, name, size, SIDECAR_MAX);
    return 0;
}

/* Add the files of a module's directory. */
static int add_module(struct sidecars *s, const struct modeldir *d,
                      const char *dir, bool warn, struct err *e)
{
    struct dirent **list;
    char name[2 * NAME_MAX + 2];
    int n, rc = modeldir_list(d, dir, &list, &n, e);

    if (rc)
        return rc;
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%s/%s", dir, list[i]->d_name);
        if (rc || !modeldir_path_ok(name))
            ;
        else if (list[i]->d_type != DT_DIR)
            rc = add_module_file(s, d, name, warn, e);
        else if (warn)
            warning("'%s/%s': will not be copied: a module's files are, not "
                    "its directories",
                    d->path, name);
        free(list[i]);
    }
    free(list);
    return rc;
}

/* Whether files of DIR are listed: two modules may have one. */
static bool has_module(const struct sidecars *s, const char *dir)
{
    size_t n = strlen(dir);

    for (size_t i = 0; i < s->n; i++)
        if (!strncmp(s->name[i], dir, n) && s->name[i][n] == '/')
            return true;
    return false;
}

/* *dir = the directory of a module; NULL: the model's own.  Files that are
 * written beside it have a dot in their name, or are SUMS_FILE. */
static int module_directory(const struct json *module, const char **dir,
                            struct err *e)
{
    if (!json_string(json_get(module, "path"), dir))
        return err_set(e, E_DATA, "'" MODULES_FILE "': a module has no 'path'");
    if (!**dir || !strcmp(*dir, ".")) {
        *dir = NULL;
        return 0;
    }
    if (modeldir_name_ok(*dir, "") && !strchr(*dir, '.') &&
        strcmp(*dir, SUMS_FILE) != 0)
        return 0;
    return err_set(e, E_DATA,
                   "'" MODULES_FILE "': '%.200s' is not allowed as the "
                   "directory of a module",
                   *dir);
}

/* Add the files of all modules.  One without settings, such as Normalize, has a
 * directory without files, which git leaves out. */
static int add_modules(struct sidecars *s, const struct modeldir *d, bool warn,
                       struct err *e)
{
    struct json_doc *doc;
    const char *dir;
    char *text;
    size_t len;
    int rc = modeldir_slurp(d, MODULES_FILE, MODULES_MAX, &text, &len, e);

    if (rc)
        return rc;
    rc = json_parse(&doc, text, len, "'" MODULES_FILE "'", e);
    free(text);
    if (rc)
        return rc;
    if (json_type(json_root(doc)) != JSON_ARRAY)
        rc = err_set(e, E_DATA, "'" MODULES_FILE "': not a list of modules");
    for (const struct json *m = json_first(json_root(doc)); !rc && m;
         m = json_after(m)) {
        rc = module_directory(m, &dir, e);
        if (!rc && dir && modeldir_has(d, dir) && !has_module(s, dir))
            rc = add_module(s, d, dir, warn, e);
    }
    json_free(doc);
    return rc;
}

/* ---- all ---- */

/* sidecars_list(); warn: say what modules have that is left out. */
static int list_all(struct sidecars *s, const struct modeldir *d, bool code,
                    bool map, bool warn, struct err *e)
{
    struct dirent **list = NULL;
    int n = scandir(d->path, &list, NULL, alphasort);
    int rc = n < 0 ? err_set(e, E_NOINPUT, "cannot list '%s':", d->path) : 0;

    *s = (struct sidecars){ 0 };
    for (int i = 0; i < n; i++) {
        if (!rc && list[i]->d_type != DT_DIR &&
            is_sidecar(list[i]->d_name, code, map))
            rc = append(s, list[i]->d_name, e);
        free(list[i]);
    }
    free(list);
    if (!rc && modeldir_has(d, MODULES_FILE))
        rc = add_modules(s, d, warn, e);
    return rc;
}

int sidecars_list(struct sidecars *s, const struct modeldir *d, bool code,
                  bool map, struct err *e)
{
    return list_all(s, d, code, map, false, e);
}

void sidecars_release(struct sidecars *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->name[i]);
    free(s->name);
    *s = (struct sidecars){ 0 };
}

static int check_one(const struct modeldir *d, const char *name, struct err *e)
{
    struct file *f;
    int rc = modeldir_file(d, name, &f, e);

    if (rc)
        return rc;
    if (file_size(f) > SIDECAR_MAX)
        rc = err_set(e, E_DATA, "'%s/%s': longer than %d bytes", d->path, name,
                     SIDECAR_MAX);
    file_close(f);
    return rc;
}

static int check_all(const struct modeldir *d, bool code, struct err *e)
{
    static const char *const more[] = { "README.md", "quantize_config.json",
                                        "quant_config.json" };
    struct sidecars s;
    int rc = list_all(&s, d, code, true, true, e);

    for (size_t i = 0; !rc && i < s.n; i++)
        rc = check_one(d, s.name[i], e);
    for (size_t i = 0; !rc && i < ARRAY_LEN(more); i++)
        if (modeldir_has(d, more[i]))
            rc = check_one(d, more[i], e);
    sidecars_release(&s);
    return rc;
}

static int check_map(const char *model, struct err *e)
{
    struct model_config c;
    int32_t *map;
    int rc = model_config_read(&c, model, e);

    if (rc)
        return rc;
    rc = expert_map_stored(model, &c, &map, e);
    free(map);
    model_config_release(&c);
    return rc;
}

int sidecars_check(const char *model, struct err *e)
{
    struct modeldir d;
    char *config;
    size_t len;
    int rc = modeldir_open(&d, model, e);

    if (rc)
        return rc;
    rc = modeldir_slurp(&d, "config.json", CONFIG_MAX, &config, &len, e);
    if (!rc) {
        rc = check_all(&d, strstr(config, "\"auto_map\"") != NULL, e);
        free(config);
    }
    modeldir_close(&d);
    return rc ? rc : check_map(model, e);
}
