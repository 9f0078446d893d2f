/* sync.c - see sync.h. */
#include "common/io/sync.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int sync_write(struct stream_writer *w, const char *name, uint64_t number,
               struct err *e)
{
    struct frame f = {
        .role = ROLE_NOTE, .dtype = DT_U8, .ndim = 1, .ancillary = true
    };
    char text[40];

    f.len =
        (size_t)snprintf(text, sizeof(text), "{\"sync\":%" PRIu64 "}", number);
    f.dims[0] = f.len;
    f.data = text;
    snprintf(f.name, sizeof(f.name), "%s", name);
    return stream_write(w, &f, e);
}

bool sync_read(const struct frame *f, uint64_t *number)
{
    char text[40];
    int end = 0;

    if (f->role != ROLE_NOTE || !f->ancillary || f->len >= sizeof(text))
        return false;
    memcpy(text, f->data, f->len);
    text[f->len] = 0;
    return sscanf(text, "{\"sync\":%" SCNu64 "}%n", number, &end) == 1 &&
           end == (int)f->len;
}
