/* collect.c - see collect.h. */
#include "shard/collect.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Read a note's payload as text; free() *text. */
static int note_text(const struct collection *c, const struct frame *f,
                     uint64_t source, char **text, struct err *e)
{
    int rc;

    *text = mem_alloc(f->len, "note", e);
    if (!*text)
        return e->code;
    rc = stream_payload(c->in[c->n_in - 1], source, *text, f->len, e);
    if (rc)
        free(*text);
    return rc;
}

/* What came through a pipe lies in a file of ours, which is no name for a user. */
static const char *shown(const char *path, const struct stream_expect *expect)
{
    return expect->piped ? "<stdin>" : path;
}

static int open_input(struct stream_reader **in, const char *path,
                      const struct stream_expect *expect, struct err *e)
{
    int fd;

    if (!expect->piped)
        return stream_open(in, path, expect, e);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, err_open_code(errno), "cannot open '%s':", path);
    return stream_open_fd(in, fd, shown(path, expect), expect, e);
}

/* Open a reader, owned by c from the beginning, so that it is closed on errors
 * too. */
static int add_input(struct collection *c, const char *path,
                     const struct stream_expect *expect, struct err *e)
{
    size_t n = (size_t)c->n_in + 1;

    if (mem_grow(&c->in, n * sizeof(*c->in), "inputs", e) ||
        open_input(&c->in[c->n_in], path, expect, e))
        return e->code;
    c->n_in++;
    return 0;
}

static int add_tensor(struct collection *c, const struct frame *f,
                      uint64_t source, struct err *e)
{
    const char *tail = f->role == ROLE_WEIGHT ? ".weight" : "";
    size_t cap = strlen(f->name) + strlen(tail) + 1;
    struct out_tensor t = { .dtype = f->dtype,
                            .ndim = f->ndim,
                            .input = c->n_in - 1,
                            .source = source };

    memcpy(t.dims, f->dims, sizeof(t.dims));
    if (!dtype_size(f->dtype, f->ndim, f->dims, &t.bytes) ||
        size_add(c->bytes, t.bytes, &c->bytes))
        return err_set(e, E_DATA, "'%s': size overflows", f->name);
    if (c->n == c->cap) {
        size_t more = c->cap ? 2 * c->cap : 256;

        if (mem_grow(&c->tensor, more * sizeof(*c->tensor), "tensors", e))
            return e->code;
        c->cap = more;
    }
    t.name = mem_alloc(cap, "tensors", e);
    if (!t.name)
        return e->code;
    strcpy(t.name, f->name);
    strcat(t.name, tail);
    c->tensor[c->n++] = t;
    return 0;
}

static int take_run_note(struct collection *c, const struct frame *f,
                         uint64_t source, struct err *e)
{
    struct run_facts facts;
    char *text;
    int rc = note_text(c, f, source, &text, e);

    if (rc)
        return rc;
    rc = run_facts_read(&facts, text, f->len, "note 'run'", e);
    free(text);
    if (rc)
        return rc;
    if (c->packed && !run_facts_equal(&c->facts, &facts))
        return err_set(
            e, E_DATA,
            "note 'run': packed as %s, group %" PRIu64
            ", %ssymmetric, %s, but a stream before it as %s, "
            "group %" PRIu64 ", %ssymmetric, %s",
            layout_name(facts.layout), facts.group, facts.symmetric ? "" : "a",
            dtype_name(facts.scale_dtype), layout_name(c->facts.layout),
            c->facts.group, c->facts.symmetric ? "" : "a",
            dtype_name(c->facts.scale_dtype));
    c->facts = facts;
    c->packed = true;
    return 0;
}

static int take_module_note(struct collection *c, const struct frame *f,
                            uint64_t source, struct err *e)
{
    char *text;
    int rc = note_text(c, f, source, &text, e);

    if (rc)
        return rc;
    rc = provenance_note(&c->about, text, f->len, e);
    free(text);
    return rc;
}

static int take(struct collection *c, const struct frame *f, uint64_t source,
                struct err *e)
{
    if (f->ancillary)
        return 0;
    switch (f->role) {
    case ROLE_TENSOR:
    case ROLE_WEIGHT: return add_tensor(c, f, source, e);
    case ROLE_NOTE:
        return strcmp(f->name, RUN_NOTE) ? take_module_note(c, f, source, e) :
                                           take_run_note(c, f, source, e);
    case ROLE_HITMAP: return 0; /* about the run, no part of the model */
    case ROLE_CODES:
    case ROLE_QMETA:
    case ROLE_SCALES:
    case ROLE_ZEROS:
        return err_set(e, E_DATA, "'%s': %s not packed: run forge-pack first",
                       f->name, role_name(f->role));
    default:
        return err_set(e, E_DATA, "'%s': %s has no place in a checkpoint",
                       f->name, role_name(f->role));
    }
}

int collect(struct collection *c, const char *path,
            const struct stream_expect *expect, struct err *e)
{
    struct frame f;
    uint64_t source = 0;
    int rc;

    if (add_input(c, path, expect, e))
        return e->code;
    while ((rc = stream_skim(c->in[c->n_in - 1], &f, &source, e)) > 0)
        if (provenance_head(&c->about, stream_head(c->in[c->n_in - 1]), e) ||
            take(c, &f, source, e))
            return err_prefix(e, "'%s': frame %" PRIu64, shown(path, expect),
                              stream_frame_number(c->in[c->n_in - 1]));
    return rc;
}

/* Compare names; runs of digits as numbers, the rest by bytes. */
static int natural(const char *a, const char *b)
{
    while (*a && *b) {
        size_t na = strspn(a, "0123456789"), nb = strspn(b, "0123456789");

        if (na && nb) {
            int c;

            for (; na > 1 && *a == '0'; na--)
                a++;
            for (; nb > 1 && *b == '0'; nb--)
                b++;
            c = na != nb ? (na < nb ? -1 : 1) : strncmp(a, b, na);
            if (c)
                return c;
            a += na;
            b += nb;
        } else if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    return *a ? 1 : *b ? -1 : 0;
}

static int by_name(const void *a, const void *b)
{
    const struct out_tensor *x = a, *y = b;
    int c = natural(x->name, y->name);

    return c ? c : strcmp(x->name, y->name); /* natural("1", "01") is 0 */
}

int collect_finish(struct collection *c, struct err *e)
{
    if (c->n)
        qsort(c->tensor, c->n, sizeof(*c->tensor), by_name);
    for (size_t i = 1; i < c->n; i++)
        if (!strcmp(c->tensor[i - 1].name, c->tensor[i].name))
            return err_set(e, E_DATA, "tensor '%s' came twice",
                           c->tensor[i].name);
    return 0;
}

void collection_release(struct collection *c)
{
    for (int i = 0; i < c->n_in; i++)
        stream_close(c->in[i]);
    for (size_t i = 0; i < c->n; i++)
        free(c->tensor[i].name);
    free(c->in);
    free(c->tensor);
    provenance_release(&c->about);
}
