/* parts.c - see parts.h. */
#include "checkpoint/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct ck_tensor *packed_part(const struct checkpoint *c,
                                    const char *module, const char *part)
{
    char name[1024];
    int n = snprintf(name, sizeof(name), "%s.%s", module, part);

    return n > 0 && (size_t)n < sizeof(name) ? checkpoint_find(c, name) : NULL;
}

void *packed_bytes(struct checkpoint *c, const struct ck_tensor *t,
                   struct err *e)
{
    void *buf = mem_pages(t->bytes, t->name, e);

    if (buf && checkpoint_read(c, t, buf, e)) {
        free(buf);
        return NULL;
    }
    return buf;
}

void packed_release(struct packed *p)
{
    free(p->codes);
    free(p->zeros);
    free(p->scales);
    free(p->g_idx);
    memset(p, 0, sizeof(*p));
}
