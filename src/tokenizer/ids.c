/* ids.c - see ids.h. */
#include "tokenizer/ids.h"

int token_ids_add(struct token_ids *ids, const int32_t *id, size_t n,
                  struct err *e)
{
    if (n > ids->cap - ids->count) {
        size_t cap = ids->count + n + (ids->count + n) / 2 + 64, bytes;

        if (size_mul(cap, sizeof(*id), &bytes) ||
            mem_grow(&ids->id, bytes, "ids", e) < 0)
            return err_set(e, E_TEMP, "ids: cannot allocate memory");
        ids->cap = cap;
    }
    for (size_t i = 0; i < n; i++)
        ids->id[ids->count + i] = id[i];
    ids->count += n;
    return 0;
}
