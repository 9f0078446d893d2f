/* sidecar.c - see sidecar.h. */
#include "shard/sidecar.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/expertmap.h"
#include "checkpoint/modeldir.h"

enum { SIDECAR_MAX = 256 << 20, CONFIG_MAX = 16 << 20 };

/* Is a file of this name copied?  *.py only with code, a map of experts only
 * with map. */
static bool is_sidecar(const char *name, bool code, bool map)
{
    static const char *const wanted[] = { "tokenizer*.json",
                                          "tokenizer*.model",
                                          "*.tiktoken",
                                          "special_tokens_map.json",
                                          "added_tokens.json",
                                          "vocab.json",
                                          "vocab.txt",
                                          "merges.txt",
                                          "spiece.model",
                                          "sentencepiece*.model",
                                          "chat_template*",
                                          "generation_config.json",
                                          "preprocessor_config.json",
                                          "processor_config.json",
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

static int copy_one(const struct outdir *o, const struct modeldir *from,
                    const char *name, struct err *e)
{
    char *text;
    size_t len;
    int rc;

    if (modeldir_slurp(from, name, SIDECAR_MAX, &text, &len, e))
        return e->code;
    rc = outdir_text(o, name, text, len, e);
    free(text);
    return rc;
}

/* What copy_one() would refuse. */
static int check_one(const struct modeldir *from, const char *name,
                     struct err *e)
{
    struct file *f;
    int rc = modeldir_file(from, name, &f, e);

    if (rc)
        return rc;
    if (file_size(f) > SIDECAR_MAX)
        rc = err_set(e, E_DATA, "'%s/%s': %llu bytes, more than %d", from->path,
                     name, (unsigned long long)file_size(f), SIDECAR_MAX);
    file_close(f);
    return rc;
}

/* Copy them, or with o NULL only look at them. */
static int each(const struct outdir *o, const char *model, bool code, bool map,
                struct err *e)
{
    struct modeldir from;
    struct dirent **list = NULL;
    int n, rc;

    if (modeldir_open(&from, model, e))
        return e->code;
    n = scandir(model, &list, NULL, alphasort);
    rc = n < 0 ? err_set(e, E_NOINPUT, "cannot list '%s':", model) : 0;
    for (int i = 0; i < n; i++) {
        if (!rc && list[i]->d_type != DT_DIR &&
            is_sidecar(list[i]->d_name, code, map))
            rc = o ? copy_one(o, &from, list[i]->d_name, e) :
                     check_one(&from, list[i]->d_name, e);
        free(list[i]);
    }
    free(list);
    modeldir_close(&from);
    return rc;
}

int sidecar_copy(const struct outdir *o, const char *model, bool code, bool map,
                 struct err *e)
{
    return each(o, model, code, map, e);
}

int sidecar_check(const char *model, struct err *e)
{
    struct modeldir d;
    char *text;
    size_t len;
    bool code;
    int rc = modeldir_open(&d, model, e);

    if (rc)
        return rc;
    rc = modeldir_slurp(&d, "config.json", CONFIG_MAX, &text, &len, e);
    modeldir_close(&d);
    if (rc)
        return rc;
    code = sidecar_wants_code(text);
    free(text);
    return each(NULL, model, code, true, e);
}

bool sidecar_wants_code(const char *config)
{
    return strstr(config, "\"auto_map\"") != NULL;
}
