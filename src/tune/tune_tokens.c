/* tune_tokens.c - see tune_tokens.h. */
#include "tune/tune_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "common/io/stream.h"
#include "common/math/splitmix.h"

static int append(struct tune_tokens *s, const struct frame *f,
                  const struct model *m, struct err *e)
{
    int64_t n = (int64_t)f->dims[0], used = s->start ? s->start[s->count] : 0;

    if (f->dtype != DT_I32 || f->ndim != 1)
        return err_set(e, E_DATA, "tokens '%s': not I32 [n]", f->name);
    if (!n)
        return 0;
    if (model_check_tokens(m, f->data, n, e) < 0)
        return err_prefix(e, "tokens '%s'", f->name);
    if (model_check_length(m, n, e) < 0 ||
        mem_grow(&s->ids, (size_t)(used + n) * sizeof(*s->ids), "tokens", e) <
            0 ||
        mem_grow(&s->start, (size_t)(s->count + 2) * sizeof(*s->start),
                 "tokens", e) < 0)
        return e->code;
    s->start[0] = 0;
    memcpy(s->ids + used, f->data, (size_t)n * sizeof(*s->ids));
    s->start[++s->count] = used + n;
    s->longest = n > s->longest ? n : s->longest;
    return 0;
}

int tune_tokens_read(struct tune_tokens *s, const char *path, const char *key,
                     const struct model *m, struct stream_writer *out,
                     struct err *e)
{
    struct stream_expect expect = { .key = key };
    struct stream_reader *in = NULL;
    int64_t before = s->count;
    struct frame f;
    int rc = stream_open(&in, path, &expect, e);

    while (rc >= 0 && (rc = stream_next(in, &f, e)) > 0)
        if (f.role == ROLE_TOKENS)
            rc = append(s, &f, m, e);
    if (rc >= 0)
        rc = stream_inherit(out, stream_head(in), e);
    stream_close(in);
    if (rc >= 0 && s->count == before)
        rc = err_set(e, E_DATA, "'%s' has no tokens", path);
    return rc;
}

void tune_tokens_release(struct tune_tokens *s)
{
    free(s->ids);
    free(s->start);
    *s = (struct tune_tokens){ 0 };
}

void tune_tokens_shuffle(const struct tune_tokens *s, uint64_t seed,
                         uint64_t round, int64_t *order)
{
    uint64_t from = splitmix64_at(seed) + round;

    for (int64_t i = 0; i < s->count; i++) {
        int64_t to =
            (int64_t)(splitmix64_at(splitmix64_at(from) + (uint64_t)i) %
                      (uint64_t)(i + 1));

        order[i] = order[to];
        order[to] = i;
    }
}
