/* pickle_value.h - values of the pickle machine, and the arena that owns them:
 * all values of a run are freed together. */
#ifndef FORGE_PICKLE_VALUE_H
#define FORGE_PICKLE_VALUE_H

#include "common/base.h"
#include "common/math/dtype.h"

struct pickle_tensor;

/* Types of values on the machine's stack. */
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

/* What a permitted name stands for. */
enum global_kind {
    GLOBAL_ORDERED_DICT,
    GLOBAL_DEFAULT_DICT,
    GLOBAL_LIST, /* only as a defaultdict's factory */
    GLOBAL_SIZE,
    GLOBAL_STORAGE, /* a storage class, elements of global.dtype */
    GLOBAL_DTYPE,
    GLOBAL_REBUILD, /* _rebuild_tensor, _rebuild_tensor_v2 */
    GLOBAL_REBUILD_V3,
    GLOBAL_PARAMETER
};

/* A permitted name. */
struct global {
    const char *module, *name;
    enum global_kind kind;
    enum dtype dtype; /* DT_NONE: an untyped storage of bytes */
};

/* A value; which fields are set depends on its type. */
struct value {
    enum value_type type;
    int64_t number;      /* bool, int; storage: number of elements */
    const char *text;    /* text; storage: its key; NUL-terminated */
    struct value **item; /* tuple, list, dict */
    size_t count, cap;
    const struct global *global; /* global; storage: its class */
    struct pickle_tensor *tensor;
};

/* Zero-initialise. */
struct arena {
    struct arena_block *block;
    size_t used;
};

/* n zeroed bytes, aligned for any type.  NULL: *e is E_TEMP. */
MUST_CHECK void *arena_zero(struct arena *a, size_t n, struct err *e);
/* A copy of n bytes with a NUL appended.  NULL: *e is E_TEMP. */
MUST_CHECK const char *arena_text(struct arena *a, const void *text, size_t n,
                                  struct err *e);
void arena_release(struct arena *a);
/* A value of this type, otherwise zero. */
MUST_CHECK struct value *value_new(struct arena *a, enum value_type type,
                                   struct err *e);
/* Append item to v->item. */
MUST_CHECK int value_append(struct arena *a, struct value *v,
                            struct value *item, struct err *e);
/* Whether v is an integer that is not negative. */
bool value_is_size(const struct value *v);
/* A tuple of sizes to out[CHECKPOINT_MAX_DIMS]; returns how many, or -1. */
int value_sizes(const struct value *v, uint64_t *out);
/* The permitted name; NULL: not permitted. */
const struct global *global_find(const char *module, const char *name);

#endif
