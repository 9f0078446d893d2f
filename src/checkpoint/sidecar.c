/* sidecar.c - see sidecar.h. */
#include "checkpoint/sidecar.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/expertmap.h"

enum { CONFIG_MAX = 16 << 20 };

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

int sidecars_list(struct sidecars *s, const struct modeldir *d, bool code,
                  bool map, struct err *e)
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
    return rc;
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
    int rc = sidecars_list(&s, d, code, true, e);

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
    if (!rc && modeldir_has(&d, "modules.json"))
        warning("'modules.json' of sentence-transformers will not be copied: "
                "copy it, and the directories that it names");
    modeldir_close(&d);
    return rc ? rc : check_map(model, e);
}
