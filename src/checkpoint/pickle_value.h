/* pickle_value.h - what the pickle machine's stack holds, and where it lives:
 * all of a run's values are freed at once. */
#ifndef FORGE_PICKLE_VALUE_H
#define FORGE_PICKLE_VALUE_H

#include "common/base.h"
#include "common/math/dtype.h"

struct pickle_tensor;

enum value_type {
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_TEXT,
    VALUE_TUPLE,
    VALUE_LIST,
    VALUE_DICT, /* item: key, value, key, value, ... */
    VALUE_GLOBAL,
    VALUE_STORAGE,
    VALUE_TENSOR
};

/* The names a pickle may use, by what is done with them. */
enum global_kind {
    GLOBAL_ORDERED_DICT,
    GLOBAL_SIZE,
    GLOBAL_STORAGE, /* a class of storages, of global.dtype */
    GLOBAL_DTYPE,
    GLOBAL_REBUILD, /* _rebuild_tensor, _v2 */
    GLOBAL_REBUILD_V3,
    GLOBAL_PARAMETER
};

struct global {
    const char *module, *name;
    enum global_kind kind;
    enum dtype dtype; /* DT_NONE: untyped bytes */
};

struct value {
    enum value_type type;
    int64_t number;      /* of bool, int; storage: elements */
    const char *text;    /* of text; storage: its key; NUL-terminated */
    struct value **item; /* of tuple, list, dict */
    size_t count, cap;
    const struct global *global; /* of global; storage: its class */
    struct pickle_tensor *tensor;
};

struct arena {
    struct arena_block *block;
    size_t used;
};

/* n zeroed bytes, aligned for anything; NULL with *e = E_TEMP. */
MUST_CHECK void *arena_zero(struct arena *a, size_t n, struct err *e);
void arena_release(struct arena *a);
MUST_CHECK struct value *value_new(struct arena *a, enum value_type type,
                                   struct err *e);
MUST_CHECK int value_append(struct arena *a, struct value *v,
                            struct value *item, struct err *e);
/* The whitelist: NULL when the name is not on it. */
const struct global *global_find(const char *module, const char *name);

#endif
