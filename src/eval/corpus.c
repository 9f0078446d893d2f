/* corpus.c - see corpus.h. */
#include "eval/corpus.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_IDS = 1 << 16, FIRST_SEQUENCES = 64 };

static const char where[] = "tokens";

/* Make room for `more` elements beyond `used`, doubling the capacity. */
static int reserve(void *pp, size_t *cap, size_t used, size_t more, size_t size,
                   size_t first, struct err *e)
{
    size_t want, n, bytes;

    if (size_add(used, more, &want))
        return err_set(e, E_DATA, "%s: too many", where);
    if (want <= *cap)
        return 0;
    n = *cap ? *cap : first;
    while (n < want)
        if (size_mul(n, (size_t)2, &n))
            return err_set(e, E_DATA, "%s: too many", where);
    if (size_mul(n, size, &bytes))
        return err_set(e, E_DATA, "%s: too many", where);
    if (mem_grow(pp, bytes, where, e) < 0)
        return e->code;
    *cap = n;
    return 0;
}

static int check_ids(const struct frame *f, int64_t vocab, struct err *e)
{
    const int32_t *id = f->data;

    if (f->dtype != DT_I32 || f->ndim != 1)
        return err_set(e, E_DATA, "tokens '%s': not I32 [n]", f->name);
    for (uint64_t i = 0; i < f->dims[0]; i++)
        if (id[i] < 0 || id[i] >= vocab)
            return err_set(e, E_DATA,
                           "tokens '%s': id %d is not below the vocabulary "
                           "of %lld: another model's tokens",
                           f->name, id[i], (long long)vocab);
    return 0;
}

int corpus_read(struct corpus *c, struct stream_reader *in, int64_t vocab,
                bool predict, struct err *e)
{
    size_t ids_cap = 0, start_cap = 0, used = 0;
    struct frame f;
    int rc;

    *c = (struct corpus){ 0 };
    if (reserve(&c->start, &start_cap, 0, 1, sizeof(*c->start), FIRST_SEQUENCES,
                e) < 0)
        return e->code;
    c->start[0] = 0;
    while ((rc = stream_next(in, &f, e)) > 0) {
        size_t n = (size_t)f.dims[0];

        if (f.role != ROLE_TOKENS)
            continue;
        if (check_ids(&f, vocab, e) < 0 ||
            reserve(&c->ids, &ids_cap, used, n, sizeof(*c->ids), FIRST_IDS, e) <
                0 ||
            reserve(&c->start, &start_cap, c->count + 1, 1, sizeof(*c->start),
                    FIRST_SEQUENCES, e) < 0)
            return e->code;
        if (!n)
            continue;
        memcpy(c->ids + used, f.data, n * sizeof(*c->ids));
        used += n;
        c->start[++c->count] = used;
        c->positions += n - 1;
        c->longest = n > c->longest ? n : c->longest;
    }
    if (rc < 0)
        return rc;
    if (!c->count)
        return err_set(e, E_DATA, "no tokens in the input");
    if (predict && !c->positions)
        return err_set(e, E_DATA,
                       "every sequence is one token long: nothing to predict");
    return 0;
}

void corpus_release(struct corpus *c)
{
    free(c->ids);
    free(c->start);
    *c = (struct corpus){ 0 };
}
