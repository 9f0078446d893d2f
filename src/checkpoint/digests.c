/* digests.c - see digests.h: SHA256SUMS, written and read. */
#include "checkpoint/digests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/modeldir.h"

enum { LINE_EXTRA = SHA256_HEX + 3 }; /* "HEX  NAME\n" less the name */

int digests_add(struct digests *d, const char *name, const char *sha256,
                struct err *e)
{
    struct file_digest f = { .name = mem_text(name, strlen(name), name, e) };

    if (!f.name)
        return e->code;
    snprintf(f.sha256, sizeof(f.sha256), "%s", sha256);
    if (mem_grow(&d->file, (d->n + 1) * sizeof(*d->file), name, e)) {
        free(f.name);
        return e->code;
    }
    d->file[d->n++] = f;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct file_digest *x = a, *y = b;

    return strcmp(x->name, y->name);
}

int digests_text(struct digests *d, char **text, size_t *len, struct err *e)
{
    size_t cap = 1, at = 0;
    char *p;

    for (size_t i = 0; i < d->n; i++)
        cap += strlen(d->file[i].name) + LINE_EXTRA;
    p = mem_alloc(cap, SUMS_FILE, e);
    if (!p)
        return e->code;
    *p = '\0';
    if (d->n)
        qsort(d->file, d->n, sizeof(*d->file), by_name);
    for (size_t i = 0; i < d->n; i++)
        at += (size_t)snprintf(p + at, cap - at, "%s  %s\n", d->file[i].sha256,
                               d->file[i].name);
    *text = p;
    *len = at;
    return 0;
}

/* Parse a line, which is terminated by NUL. */
static int parse_line(struct digests *d, char *line, size_t number,
                      struct err *e)
{
    char *name = line + SHA256_HEX + 2;

    if (strspn(line, "0123456789abcdef") != SHA256_HEX ||
        strncmp(line + SHA256_HEX, "  ", 2) != 0 || !modeldir_path_ok(name) ||
        digests_find(d, name))
        return err_set(e, E_DATA, "line %zu is not the digest of another file",
                       number);
    line[SHA256_HEX] = '\0';
    return digests_add(d, name, line, e);
}

int digests_parse(struct digests *d, const char *text, size_t len,
                  struct err *e)
{
    const char *end = text + len;

    if (strlen(text) != len)
        return err_set(e, E_DATA, "a NUL in it");
    for (size_t number = 1; text < end; number++) {
        size_t n = strcspn(text, "\n");
        char *line = mem_alloc(n + 1, SUMS_FILE, e);
        int rc;

        if (!line)
            return e->code;
        memcpy(line, text, n);
        line[n] = '\0';
        rc = text + n < end ? parse_line(d, line, number, e) :
                              err_set(e, E_DATA, "line %zu has no end", number);
        free(line);
        if (rc)
            return rc;
        text += n + 1;
    }
    return 0;
}

const struct file_digest *digests_find(const struct digests *d,
                                       const char *name)
{
    for (size_t i = 0; i < d->n; i++)
        if (!strcmp(d->file[i].name, name))
            return &d->file[i];
    return NULL;
}

void digests_release(struct digests *d)
{
    for (size_t i = 0; i < d->n; i++)
        free(d->file[i].name);
    free(d->file);
    *d = (struct digests){ 0 };
}
