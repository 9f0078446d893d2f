/* sequence_list.c - see sequence_list.h. */
#include "tokens/sequence_list.h"

#include <stdlib.h>

int sequences_end(struct sequences *s, struct err *e)
{
    if (s->count == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 256, bytes;

        if (size_mul(cap, sizeof(*s->end), &bytes) ||
            mem_grow(&s->end, bytes, "sequences", e) < 0)
            return err_set(e, E_TEMP, "sequences: cannot allocate memory");
        s->cap = cap;
    }
    s->end[s->count++] = s->ids.count;
    return 0;
}

int sequences_add(struct sequences *s, const struct sequences_params *p,
                  const int32_t *id, size_t n, struct err *e)
{
    if (!p->whole && n > (size_t)p->seqlen) {
        n = (size_t)p->seqlen;
        s->cut++;
    }
    return token_ids_add(&s->ids, id, n, e) < 0 ? e->code : sequences_end(s, e);
}

void sequences_release(struct sequences *s)
{
    free(s->ids.id);
    free(s->end);
    *s = (struct sequences){ 0 };
}
