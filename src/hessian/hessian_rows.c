/* hessian_rows.c - see hessian_rows.h. */
#include "hessian/hessian_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pieces of moments ---- */

bool piece_rows(uint64_t of, int64_t k, int64_t n, struct name_rows *r)
{
    uint64_t each = of / (uint64_t)n, more = of % (uint64_t)n, i = (uint64_t)k;

    r->of = of;
    r->first = i * each + (i < more ? i : more);
    r->end = r->first + each + (i < more);
    return r->first < r->end;
}

void piece_named(const char *name, struct moments_piece *p)
{
    size_t len;

    if (!name_rows_of(name, &len, &p->rows))
        p->rows = (struct name_rows){ 0 };
    snprintf(p->name, sizeof(p->name), "%.*s", (int)len, name);
}

void piece_of(const struct frame *f, struct moments_piece *p)
{
    piece_named(f->name, p);
    if (!p->rows.of)
        p->rows = (struct name_rows){ 0, f->dims[0], f->dims[0] };
}

/* ---- rows of linears ---- */

/* The next name of a list; NULL: there is none.  *len: its length. */
static const char *next_name(const char *at, size_t *len)
{
    at += strspn(at, ",");
    *len = strcspn(at, ",");
    return *len ? at : NULL;
}

int rows_of_modules(const char *list, const char *modules, char **to,
                    struct err *e)
{
    const struct frame f = { .modules = modules };
    size_t len, used = 0;
    char *all = mem_zero(strlen(list) + 2, 1, "rows", e);

    *to = all;
    if (!all)
        return e->code;
    for (const char *at = list; (at = next_name(at, &len)); at += len) {
        char name[TENSOR_NAME_MAX];
        struct name_rows r;
        size_t module;

        if (len >= sizeof(name))
            continue; /* of no linear */
        memcpy(name, at, len);
        name[len] = 0;
        (void)name_rows_of(name, &module, &r);
        name[module] = 0;
        if (!frame_has_module(&f, name))
            continue;
        if (used)
            all[used++] = '\n';
        memcpy(all + used, at, len);
        used += len;
    }
    return 0;
}

int rows_cut(const char *list, struct frame *f, uint64_t *first, struct err *e)
{
    struct name_rows r;
    size_t len;
    char *names;
    int rc = rows_of_modules(list, f->modules ? f->modules : "", &names, e);

    *first = 0;
    if (rc < 0)
        return rc;
    if (!*names)
        rc = 0;
    else if (strchr(names, '\n'))
        rc = err_set(e, E_DATA, "'%s': of several linears", f->name);
    else if (!name_rows_of(names, &len, &r))
        rc = 1;
    else if (r.of != f->dims[0])
        rc = err_set(e, E_DATA, "'%s': has %llu rows", f->name,
                     (unsigned long long)f->dims[0]);
    else {
        *first = r.first;
        f->dims[0] = r.end - r.first;
        rc = 1;
    }
    free(names);
    return rc;
}
