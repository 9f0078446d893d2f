/* vocab.c - see vocab.h. */
#include <stdlib.h>

#include "tokenizer/vocab.h"

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return x < y ? -1 : x > y;
}

static int find_repeats(struct vocab *v, struct err *e)
{
    int32_t *id = mem_alloc(v->count * sizeof(*id), "vocabulary", e);

    if (!id)
        return e->code;
    for (size_t i = 0; i < v->count; i++)
        id[i] = v->token[i].id;
    qsort(id, v->count, sizeof(*id), by_id);
    for (size_t i = 1; i < v->count; i++)
        if (id[i] == id[i - 1])
            v->repeats = true;
    free(id);
    return 0;
}

static void insert(struct vocab *v, size_t index)
{
    const struct vocab_token *t = &v->token[index];
    size_t i = hash_bytes(t->text, t->len) & v->mask;

    while (v->slot[i])
        i = (i + 1) & v->mask;
    v->slot[i] = (uint32_t)index + 1;
}

static int allocate(struct vocab *v, const struct json *object, struct err *e)
{
    size_t n = json_count(object), bytes = 0, slots = 16;

    for (const struct json *i = json_first(object); i; i = json_after(i))
        bytes += strlen(json_key(i)) + 1;
    while (slots < n * 2)
        slots *= 2;
    v->mask = slots - 1;
    v->token = mem_zero(n, sizeof(*v->token), "vocabulary", e);
    v->arena = mem_alloc(bytes, "vocabulary", e);
    v->slot = mem_zero(slots, sizeof(*v->slot), "vocabulary", e);
    return v->token && v->arena && v->slot ? 0 : e->code;
}

int vocab_init(struct vocab *v, const struct json *object, const char *what,
               struct err *e)
{
    char *text;

    *v = (struct vocab){ 0 };
    if (!object || json_type(object) != JSON_OBJECT)
        return err_set(e, E_DATA, "%s: model has no vocab", what);
    if (json_count(object) > INT32_MAX / 2)
        return err_set(e, E_DATA, "%s: vocab is too large", what);
    if (allocate(v, object, e) < 0)
        return e->code;
    text = v->arena;
    for (const struct json *i = json_first(object); i; i = json_after(i)) {
        struct vocab_token *t = &v->token[v->count];
        int64_t id;

        if (!json_int(i, &id) || id < 0 || id > INT32_MAX)
            return err_set(e, E_DATA, "%s: vocab: '%.64s' has no valid id",
                           what, json_key(i));
        t->text = text;
        t->len = strlen(json_key(i));
        t->id = (int32_t)id;
        memcpy(text, json_key(i), t->len + 1);
        text += t->len + 1;
        insert(v, v->count++);
    }
    return find_repeats(v, e);
}

void vocab_release(struct vocab *v)
{
    free(v->token);
    free(v->arena);
    free(v->slot);
}

int32_t vocab_find(const struct vocab *v, const char *text, size_t len)
{
    size_t i = hash_bytes(text, len) & v->mask;

    for (; v->slot[i]; i = (i + 1) & v->mask) {
        const struct vocab_token *t = &v->token[v->slot[i] - 1];

        if (t->len == len && !memcmp(t->text, text, len))
            return t->id;
    }
    return -1;
}
