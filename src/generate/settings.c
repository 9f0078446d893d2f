/* settings.c - see settings.h. */
#include "generate/settings.h"

#include <stdlib.h>

#include "common/io/json.h"
#include "common/io/modeldir.h"

enum { FILE_MAX = 16 << 20, TOP_K = 50 };

bool generate_settings_stops(const struct generate_settings *s, int32_t id)
{
    for (int i = 0; i < s->stops; i++)
        if (s->stop[i] == id)
            return true;
    return false;
}

void generate_settings_stop(struct generate_settings *s, int32_t id)
{
    if (id >= 0 && s->stops < STOPS_MAX && !generate_settings_stops(s, id))
        s->stop[s->stops++] = id;
}

static int add_stop(struct generate_settings *s, const struct json *v,
                    struct err *e)
{
    int64_t id;

    if (!json_int(v, &id) || id < 0 || id > INT32_MAX)
        return err_set(e, E_DATA, "eos_token_id is no token");
    generate_settings_stop(s, (int32_t)id);
    return 0;
}

/* eos_token_id: a number, a list of numbers, or null. */
static int read_stops(struct generate_settings *s, const struct json *v,
                      struct err *e)
{
    int rc = 0;

    if (!v || json_type(v) == JSON_NULL)
        return 0;
    if (json_type(v) != JSON_ARRAY)
        return add_stop(s, v, e);
    for (const struct json *i = json_first(v); i && !rc; i = json_after(i))
        rc = add_stop(s, i, e);
    return rc;
}

static void read_first(struct generate_settings *s, const struct json *v)
{
    int64_t id;

    if (s->first < 0 && json_int(v, &id) && id >= 0 && id <= INT32_MAX)
        s->first = (int32_t)id;
}

static int read_sampling(struct generate_settings *s, const struct json *root,
                         struct err *e)
{
    (void)!json_bool(json_get(root, "do_sample"), &s->sample);
    (void)!json_number(json_get(root, "temperature"), &s->temperature);
    (void)!json_number(json_get(root, "top_p"), &s->top_p);
    (void)!json_int(json_get(root, "top_k"), &s->top_k);
    if (s->temperature == 0) { /* in some files 0 means greedy */
        s->sample = false;
        s->temperature = 1;
    }
    if (!(s->temperature > 0) || !(s->top_p > 0 && s->top_p <= 1) ||
        s->top_k < 0)
        return err_set(e, E_DATA,
                       "temperature, top_p or top_k is out of range");
    return 0;
}

static int read_file(struct generate_settings *s, const struct modeldir *d,
                     const char *name, bool stops, bool sampling, struct err *e)
{
    struct json_doc *doc;
    char *text;
    size_t len;
    int rc;

    if (!modeldir_has(d, name))
        return 0;
    if (modeldir_slurp(d, name, FILE_MAX, &text, &len, e) < 0)
        return e->code;
    rc = json_parse(&doc, text, len, name, e);
    free(text);
    if (rc < 0)
        return rc;
    read_first(s, json_get(json_root(doc), "bos_token_id"));
    rc = stops ? read_stops(s, json_get(json_root(doc), "eos_token_id"), e) : 0;
    if (!rc && sampling)
        rc = read_sampling(s, json_root(doc), e);
    json_free(doc);
    return rc < 0 ? err_prefix(e, "'%s/%s'", d->path, name) : 0;
}

int generate_settings_read(struct generate_settings *s, const char *model,
                           struct err *e)
{
    struct modeldir d;
    int rc;

    *s = (struct generate_settings){
        .first = -1, .temperature = 1, .top_p = 1, .top_k = TOP_K
    };
    if (modeldir_open(&d, model, e) < 0)
        return e->code;
    rc = read_file(s, &d, "generation_config.json", true, true, e);
    if (!rc && (!s->stops || s->first < 0))
        rc = read_file(s, &d, "config.json", !s->stops, false, e);
    modeldir_close(&d);
    return rc;
}
