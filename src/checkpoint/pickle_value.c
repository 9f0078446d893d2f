/* pickle_value.c - see pickle_value.h. */
#include "checkpoint/pickle_value.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"

enum { BLOCK = 64 * 1024 };

struct arena_block {
    struct arena_block *next;
    size_t size;
    max_align_t data[];
};

void *arena_zero(struct arena *a, size_t n, struct err *e)
{
    const size_t align = sizeof(max_align_t);
    void *p;

    n = (n + align - 1) / align * align;
    if (!a->block || n > a->block->size - a->used) {
        size_t size = n > BLOCK ? n : BLOCK;
        struct arena_block *b = mem_zero(1, sizeof(*b) + size, "pickle", e);

        if (!b)
            return NULL;
        b->next = a->block;
        b->size = size;
        a->block = b;
        a->used = 0;
    }
    p = (char *)a->block->data + a->used;
    a->used += n;
    return p;
}

void arena_release(struct arena *a)
{
    while (a->block) {
        struct arena_block *next = a->block->next;

        free(a->block);
        a->block = next;
    }
}

struct value *value_new(struct arena *a, enum value_type type, struct err *e)
{
    struct value *v = arena_zero(a, sizeof(*v), e);

    if (v)
        v->type = type;
    return v;
}

int value_append(struct arena *a, struct value *v, struct value *item,
                 struct err *e)
{
    if (v->count == v->cap) {
        size_t cap = v->cap ? 2 * v->cap : 4;
        struct value **p = arena_zero(a, cap * sizeof(struct value *), e);

        if (!p)
            return e->code;
        if (v->count)
            memcpy(p, v->item, v->count * sizeof(struct value *));
        v->item = p;
        v->cap = cap;
    }
    v->item[v->count++] = item;
    return 0;
}

const char *arena_text(struct arena *a, const void *text, size_t n,
                       struct err *e)
{
    char *s = arena_zero(a, n + 1, e);

    if (s)
        memcpy(s, text, n);
    return s;
}

bool value_is_size(const struct value *v)
{
    return v->type == VALUE_INT && v->number >= 0;
}

int value_sizes(const struct value *v, uint64_t *out)
{
    if (v->type != VALUE_TUPLE || v->count > CHECKPOINT_MAX_DIMS)
        return -1;
    for (size_t i = 0; i < v->count; i++) {
        if (!value_is_size(v->item[i]))
            return -1;
        out[i] = (uint64_t)v->item[i]->number;
    }
    return (int)v->count;
}

static const struct global globals[] = {
    { "collections", "OrderedDict", GLOBAL_ORDERED_DICT, DT_NONE },
    { "collections", "defaultdict", GLOBAL_DEFAULT_DICT, DT_NONE },
    { "__builtin__", "list", GLOBAL_LIST, DT_NONE },
    { "torch", "Size", GLOBAL_SIZE, DT_NONE },
    { "torch._utils", "_rebuild_tensor", GLOBAL_REBUILD, DT_NONE },
    { "torch._utils", "_rebuild_tensor_v2", GLOBAL_REBUILD, DT_NONE },
    { "torch._utils", "_rebuild_tensor_v3", GLOBAL_REBUILD_V3, DT_NONE },
    { "torch._utils", "_rebuild_parameter", GLOBAL_PARAMETER, DT_NONE },
    { "torch._utils", "_rebuild_parameter_with_state", GLOBAL_PARAMETER,
      DT_NONE },
    { "torch.storage", "UntypedStorage", GLOBAL_STORAGE, DT_NONE },
    { "torch", "UntypedStorage", GLOBAL_STORAGE, DT_NONE },
    { "torch", "FloatStorage", GLOBAL_STORAGE, DT_F32 },
    { "torch", "HalfStorage", GLOBAL_STORAGE, DT_F16 },
    { "torch", "BFloat16Storage", GLOBAL_STORAGE, DT_BF16 },
    { "torch", "DoubleStorage", GLOBAL_STORAGE, DT_F64 },
    { "torch", "LongStorage", GLOBAL_STORAGE, DT_I64 },
    { "torch", "IntStorage", GLOBAL_STORAGE, DT_I32 },
    { "torch", "ShortStorage", GLOBAL_STORAGE, DT_I16 },
    { "torch", "CharStorage", GLOBAL_STORAGE, DT_I8 },
    { "torch", "ByteStorage", GLOBAL_STORAGE, DT_U8 },
    { "torch", "BoolStorage", GLOBAL_STORAGE, DT_BOOL },
    { "torch", "float32", GLOBAL_DTYPE, DT_F32 },
    { "torch", "float16", GLOBAL_DTYPE, DT_F16 },
    { "torch", "bfloat16", GLOBAL_DTYPE, DT_BF16 },
    { "torch", "float64", GLOBAL_DTYPE, DT_F64 },
    { "torch", "float8_e4m3fn", GLOBAL_DTYPE, DT_F8_E4M3 },
    { "torch", "float8_e5m2", GLOBAL_DTYPE, DT_F8_E5M2 },
    { "torch", "float8_e8m0fnu", GLOBAL_DTYPE, DT_F8_E8M0 },
    { "torch", "int64", GLOBAL_DTYPE, DT_I64 },
    { "torch", "int32", GLOBAL_DTYPE, DT_I32 },
    { "torch", "int16", GLOBAL_DTYPE, DT_I16 },
    { "torch", "int8", GLOBAL_DTYPE, DT_I8 },
    { "torch", "uint64", GLOBAL_DTYPE, DT_U64 },
    { "torch", "uint32", GLOBAL_DTYPE, DT_U32 },
    { "torch", "uint16", GLOBAL_DTYPE, DT_U16 },
    { "torch", "uint8", GLOBAL_DTYPE, DT_U8 },
    { "torch", "bool", GLOBAL_DTYPE, DT_BOOL },
};

const struct global *global_find(const char *module, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(globals); i++)
        if (strcmp(globals[i].module, module) == 0 &&
            strcmp(globals[i].name, name) == 0)
            return &globals[i];
    return NULL;
}
