/* filed.c - see filed.h. */
#include "gptq/solve/filed.h"

#include <stdlib.h>
#include <string.h>

#include "gptq/hessian_file.h"

struct filed {
    struct hessian_file *file;
    const struct hessian_entry *last; /* read last */
    char *named; /* the modules that the stream's own last Hessian names */
};

int filed_open(struct filed **out, const char *path, struct err *e)
{
    struct filed *t = mem_zero(1, sizeof(*t), "solve", e);

    if (!t)
        return e->code;
    if (hessian_file_open(&t->file, path, NULL, e) < 0) {
        free(t);
        return e->code;
    }
    *out = t;
    return 0;
}

void filed_close(struct filed *t)
{
    if (!t)
        return;
    hessian_file_close(t->file);
    free(t->named);
    free(t);
}

static int remember(struct filed *t, const struct frame *f, struct err *e)
{
    const char *s = f->modules ? f->modules : "";

    if (mem_grow(&t->named, strlen(s) + 1, "solve", e) < 0)
        return e->code;
    strcpy(t->named, s);
    return 0;
}

int filed_before(void *filed, struct prefetch *a, const struct frame *f,
                 const struct frame *have, int n, struct frame *more,
                 struct err *e)
{
    struct filed *t = filed;
    const struct frame own = { .modules = t->named };
    struct hessian_entry *entry;
    struct err none;
    float *data;

    (void)have;
    (void)n;
    if (f->role == ROLE_HESSIAN)
        return remember(t, f, e);
    if (f->role != ROLE_WEIGHT || f->ndim != 2 ||
        frame_has_module(&own, f->name) ||
        !hessian_file_has(t->file, f->name) ||
        hessian_file_find(t->file, f->name, f->dims[1], &entry, &none) < 0 ||
        entry == t->last || entry->block)
        return 0;
    data = prefetch_alloc(a, entry->len, e);
    if (!data || hessian_file_read(t->file, entry, data, e) < 0)
        return e->code;
    t->last = entry;
    *more = (struct frame){ .role = ROLE_HESSIAN,
                            .dtype = DT_F32,
                            .ndim = 1,
                            .dims = { entry->len / sizeof(*data) },
                            .ancillary = true,
                            .samples = entry->samples,
                            .data = data,
                            .len = entry->len };
    strcpy(more->name, entry->name);
    return 1;
}
