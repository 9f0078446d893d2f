/* spool.c - see spool.h. */
#include "calib/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct entry {
    int64_t length;
    uint64_t sequence;
    off_t offset; /* bytes */
};

struct spool {
    int fd;
    struct entry *entry;
    int64_t count, cap;
    off_t end;
};

/* A file without a name; where the file system has no such thing, one whose
 * name is removed at once. */
static int open_nameless(const char *dir)
{
    char path[4096];
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0 || errno == ENOENT || errno == EACCES)
        return fd;
    if (snprintf(path, sizeof(path), "%s/forge-calib.XXXXXX", dir) >=
        (int)sizeof(path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

int spool_create(struct spool **out, const char *dir, struct err *e)
{
    struct spool *s = mem_zero(1, sizeof(*s), "hidden states", e);

    if (!s)
        return e->code;
    s->fd = open_nameless(dir);
    if (s->fd < 0) {
        free(s);
        return err_set(e, E_CREATE,
                       "cannot create a temporary file in '%s':", dir);
    }
    *out = s;
    return 0;
}

void spool_close(struct spool *s)
{
    if (!s)
        return;
    close(s->fd);
    free(s->entry);
    free(s);
}

int64_t spool_count(const struct spool *s)
{
    return s->count;
}

/* Exactly n bytes at off, written or read. */
static int transfer(const struct spool *s, void *p, size_t n, off_t off,
                    bool out, struct err *e)
{
    char *at = p;

    while (n) {
        ssize_t k = out ? pwrite(s->fd, at, n, off) : pread(s->fd, at, n, off);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(e, E_IO, "hidden states: temporary file:");
        if (!k)
            return err_set(e, E_IO, "hidden states: temporary file ends early");
        at += k;
        n -= (size_t)k;
        off += k;
    }
    return 0;
}

static size_t row_size(const struct batch *b)
{
    return (size_t)b->s.hidden_size * (b->s.dtype == DT_BF16 ? 2 : 4);
}

int spool_append(struct spool *s, const struct batch *b, struct err *e)
{
    off_t at = s->end;

    if (s->count + b->n > s->cap) {
        int64_t cap = 2 * s->cap + b->n;

        if (mem_grow(&s->entry, (size_t)cap * sizeof(*s->entry), "sequences",
                     e) < 0)
            return e->code;
        s->cap = cap;
    }
    for (int64_t i = 0; i < b->n; i++) {
        s->entry[s->count++] = (struct entry){ .length = b->length[i],
                                               .sequence = b->sequence[i],
                                               .offset = s->end };
        s->end += (off_t)((size_t)b->length[i] * row_size(b));
    }
    return transfer(s, b->s.x, (size_t)(s->end - at), at, true, e);
}

int spool_read(struct spool *s, const struct model *m, int64_t *next,
               struct batch *b, struct err *e)
{
    const struct entry *first = s->entry + *next;
    int64_t rows = 0;

    for (b->n = 0; *next < s->count && b->n < BATCH_SEQUENCES;
         b->n++, ++*next) {
        const struct entry *x = s->entry + *next;

        if (b->n && rows + x->length > BATCH_ROWS)
            break;
        b->length[b->n] = x->length;
        b->sequence[b->n] = x->sequence;
        rows += x->length;
    }
    if (!b->n)
        return 0;
    b->last = *next == s->count;
    if (state_prepare(&b->s, m, POINT_IN, b->length, b->n, e) < 0 ||
        transfer(s, b->s.x, (size_t)rows * row_size(b), first->offset, false,
                 e) < 0)
        return e->code;
    return 1;
}

int spool_rewrite(struct spool *s, int64_t next, const struct batch *b,
                  struct err *e)
{
    return transfer(s, b->s.x, (size_t)b->s.rows * row_size(b),
                    s->entry[next - b->n].offset, true, e);
}
