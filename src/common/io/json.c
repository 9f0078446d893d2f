/* json.c - see json.h: reading.  json_scan.c checks the text, then cJSON
 * parses it; a struct json is a cJSON node.
 *
 * Two fields that cJSON leaves unused hold what lookups need: valueint of an
 * array or object is its number of children, valuestring of a large object
 * points to its hash table of members (cJSON_Delete frees it with the
 * object). */
#include "common/io/json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/io/file.h"
#include "common/io/json_scan.h"

enum { HASH_FROM = 9 }; /* members from which an object gets a hash table */

struct json_doc {
    cJSON *root;
};

struct members {
    size_t mask;
    const cJSON *slot[];
};

/* cJSON's allocator.  cJSON reports only that it failed; since the scan has
 * passed, the reason is memory. */
static void *allocate(size_t n)
{
    struct err e;
    void *p = mem_alloc(n, "json", &e);

    return p;
}

static const cJSON *node(const struct json *v)
{
    return (const cJSON *)v;
}

static size_t slot_of(const struct members *m, const char *key)
{
    size_t i = XXH3_64bits(key, strlen(key)) & m->mask;

    while (m->slot[i] && strcmp(m->slot[i]->string, key))
        i = (i + 1) & m->mask;
    return i;
}

struct check {
    const char *text, *what;
    size_t len, keys; /* keys seen, in the order of the text */
    struct err *e;
};

static int duplicate(struct check *c, size_t nth)
{
    return json_scan_duplicate(c->text, c->len, nth, c->what, c->e);
}

static int check_value(struct check *c, cJSON *v);

static int check_members_small(struct check *c, cJSON *object)
{
    for (cJSON *m = object->child; m; m = m->next) {
        size_t nth = c->keys++;

        for (cJSON *o = object->child; o != m; o = o->next)
            if (!strcmp(o->string, m->string))
                return duplicate(c, nth);
        if (check_value(c, m) < 0)
            return c->e->code;
    }
    return 0;
}

static int check_members_hashed(struct check *c, cJSON *object)
{
    struct members *t;
    size_t cap = 16;

    while (cap < 2 * (size_t)object->valueint)
        cap *= 2;
    t = mem_zero(1, sizeof(*t) + cap * sizeof(t->slot[0]), c->what, c->e);
    if (!t)
        return c->e->code;
    t->mask = cap - 1;
    object->valuestring = (char *)t;
    for (cJSON *m = object->child; m; m = m->next) {
        size_t nth = c->keys++, i = slot_of(t, m->string);

        if (t->slot[i])
            return duplicate(c, nth);
        t->slot[i] = m;
        if (check_value(c, m) < 0)
            return c->e->code;
    }
    return 0;
}

/* Count children, find duplicate keys, build the hash tables.  Recursion is
 * limited by the depth that the scan allowed. */
static int check_value(struct check *c, cJSON *v)
{
    if (!cJSON_IsArray(v) && !cJSON_IsObject(v))
        return 0;
    v->valueint = 0;
    for (cJSON *m = v->child; m; m = m->next)
        v->valueint++;
    if (cJSON_IsObject(v))
        return v->valueint < HASH_FROM ? check_members_small(c, v) :
                                         check_members_hashed(c, v);
    for (cJSON *m = v->child; m; m = m->next)
        if (check_value(c, m) < 0)
            return c->e->code;
    return 0;
}

int json_parse(struct json_doc **out, const char *text, size_t len,
               const char *what, struct err *e)
{
    cJSON_Hooks hooks = { allocate, free };
    struct check c = { .text = text, .what = what, .len = len, .e = e };
    struct json_doc *d;

    if (json_scan(text, len, what, e) < 0)
        return e->code;
    d = mem_zero(1, sizeof(*d), what, e);
    if (!d)
        return e->code;
    cJSON_InitHooks(&hooks);
    d->root = cJSON_ParseWithLength(text, len);
    if (!d->root) {
        free(d);
        return err_set(e, E_TEMP, "%s: cannot allocate for %zu bytes of JSON",
                       what, len);
    }
    if (check_value(&c, d->root) < 0) {
        json_free(d);
        return e->code;
    }
    *out = d;
    return 0;
}

int json_read_file(struct json_doc **d, const char *path, size_t max,
                   struct err *e)
{
    char *text, what[300];
    size_t len, n = strlen(path);
    int rc;

    if (file_slurp(&text, &len, path, max, e) < 0)
        return e->code;
    /* the end of a long path is the part that tells files apart */
    what[0] = '\'';
    memcpy(what + 1, n > 290 ? path + n - 290 : path, n > 290 ? 291 : n + 1);
    strcat(what, "'");
    rc = json_parse(d, text, len, what, e);
    free(text);
    return rc;
}

void json_free(struct json_doc *d)
{
    if (d)
        cJSON_Delete(d->root);
    free(d);
}

const struct json *json_root(const struct json_doc *d)
{
    return (const struct json *)d->root;
}

enum json_type json_type(const struct json *v)
{
    switch (node(v)->type & 0xff) {
    case cJSON_False:
    case cJSON_True: return JSON_BOOL;
    case cJSON_Number: return JSON_NUMBER;
    case cJSON_String: return JSON_STRING;
    case cJSON_Array: return JSON_ARRAY;
    case cJSON_Object: return JSON_OBJECT;
    default: return JSON_NULL;
    }
}

const struct json *json_get(const struct json *v, const char *key)
{
    const cJSON *o = node(v);

    if (!o || !cJSON_IsObject(o))
        return NULL;
    if (o->valuestring) {
        const struct members *t = (const void *)o->valuestring;

        return (const struct json *)t->slot[slot_of(t, key)];
    }
    for (const cJSON *m = o->child; m; m = m->next)
        if (!strcmp(m->string, key))
            return (const struct json *)m;
    return NULL;
}

const struct json *json_first(const struct json *v)
{
    return v ? (const struct json *)node(v)->child : NULL;
}

const struct json *json_after(const struct json *v)
{
    return (const struct json *)node(v)->next;
}

const char *json_key(const struct json *v)
{
    return v && node(v)->string ? node(v)->string : "";
}

size_t json_count(const struct json *v)
{
    return v && (cJSON_IsArray(node(v)) || cJSON_IsObject(node(v))) ?
               (size_t)node(v)->valueint :
               0;
}

bool json_string(const struct json *v, const char **out)
{
    if (!v || !cJSON_IsString(node(v)))
        return false;
    *out = node(v)->valuestring;
    return true;
}

bool json_number(const struct json *v, double *out)
{
    if (!v || !cJSON_IsNumber(node(v)))
        return false;
    *out = node(v)->valuedouble;
    return true;
}

bool json_int(const struct json *v, int64_t *out)
{
    double d;

    if (!json_number(v, &d) || d != floor(d) || fabs(d) > 0x1p53)
        return false;
    *out = (int64_t)d;
    return true;
}

bool json_bool(const struct json *v, bool *out)
{
    if (!v || !cJSON_IsBool(node(v)))
        return false;
    *out = cJSON_IsTrue(node(v));
    return true;
}
