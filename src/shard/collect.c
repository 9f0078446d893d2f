/* collect.c - see collect.h. */
#include "shard/collect.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "arch/tensor_name.h"
#include "shard/outdir.h"

/* Read a note's payload as text; free() *text. */
static int note_text(const struct collection *c, const struct frame *f,
                     uint64_t source, char **text, struct err *e)
{
    int rc = 0;

    *text = mem_alloc(f->len, "note", e);
    if (!*text)
        return e->code;
    if (!f->data)
        rc = stream_payload(c->in[c->n_in - 1], source, *text, f->len, e);
    else
        memcpy(*text, f->data, f->len);
    if (rc)
        free(*text);
    return rc;
}

/* Open a reader, owned by c from the beginning, so that it is closed on errors
 * too. */
static int add_input(struct collection *c, const char *path,
                     const struct stream_expect *expect, struct err *e)
{
    size_t n = (size_t)c->n_in + 1;

    if (mem_grow(&c->in, n * sizeof(*c->in), "inputs", e) ||
        stream_open(&c->in[c->n_in], path, expect, e))
        return e->code;
    c->n_in++;
    return 0;
}

/* from: where it is in the source, of a tensor that is in no stream. */
static int add_tensor(struct collection *c, const struct frame *f,
                      uint64_t source, const struct ck_tensor *from,
                      struct err *e)
{
    const char *tail = f->role == ROLE_WEIGHT ? ".weight" : "";
    size_t cap = strlen(f->name) + strlen(tail) + 1, n;
    struct out_tensor t = { .layer = layout_is_part(f->name, &n) ?
                                         tensor_name_layer(f->name) :
                                         -1,
                            .dtype = f->dtype,
                            .ndim = f->ndim,
                            .input = c->spool ? -1 : c->n_in - 1,
                            .source = source,
                            .from = from };

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
    if (c->spool && !from) {
        if (f->data && spool_add(c->spool, f->data, f->len, e)) {
            free(t.name);
            return e->code;
        }
        t.source = spool_end(c->spool, &t.xxh3);
    }
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
    if (c->packed && !run_facts_agree(&c->facts, &facts))
        return err_set(
            e, E_DATA,
            "note 'run': packed as %s, group %" PRIu64
            ", %ssymmetric, %s, but a stream before it as %s, "
            "group %" PRIu64 ", %ssymmetric, %s",
            layout_name(facts.layout), facts.group, facts.symmetric ? "" : "a",
            dtype_name(facts.scale_dtype), layout_name(c->facts.layout),
            c->facts.group, c->facts.symmetric ? "" : "a",
            dtype_name(c->facts.scale_dtype));
    facts.act_order |= c->facts.act_order;
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
    if (f->ancillary) {
        uint64_t hash;

        if (f->passed)
            spool_drop(c->spool, spool_end(c->spool, &hash), f->len);
        return 0;
    }
    switch (f->role) {
    case ROLE_TENSOR:
    case ROLE_WEIGHT: return add_tensor(c, f, source, NULL, e);
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

static int take_all(struct collection *c, const char *name,
                    const struct collect_calls *calls, struct err *e)
{
    struct stream_reader *in = c->in[c->n_in - 1];
    struct frame f;
    uint64_t source = 0;
    int rc;

    while ((rc = stream_skim(in, &f, &source, e)) > 0) {
        size_t n = c->n;

        if (provenance_head(&c->about, stream_head(in), e) ||
            take(c, &f, source, e))
            return err_prefix(e, "'%s': frame %" PRIu64, name,
                              stream_frame_number(in));
        if (calls && c->n > n && calls->taken(calls->ctx, e))
            return e->code;
    }
    return rc;
}

int collect(struct collection *c, const char *path,
            const struct stream_expect *expect, struct err *e)
{
    return add_input(c, path, expect, e) ? e->code : take_all(c, path, NULL, e);
}

int collect_others(struct collection *c, const struct weights_plan *p,
                   struct err *e)
{
    for (size_t i = 0; i < p->count; i++) {
        struct frame f;

        if (p->item[i].kind == WEIGHTS_PACKED)
            return err_set(e, E_CONFIG,
                           "'%s': is of a linear in 4 bits that is not "
                           "among those to be packed",
                           p->item[i].t->name);
        if (weights_frame(&p->item[i], &f, e) ||
            add_tensor(c, &f, 0, p->item[i].t, e))
            return e->code;
    }
    return 0;
}

bool collect_is_pipe(void)
{
    struct stat st;

    return fstat(0, &st) || !S_ISREG(st.st_mode);
}

/* A piece of a large tensor has come. */
static int spool_piece(void *ctx, const struct frame *f, uint64_t at,
                       const void *piece, size_t n, struct err *e)
{
    struct collection *c = ctx;

    (void)f, (void)at;
    return outdir_go_on(e) ? e->code : spool_add(c->spool, piece, n, e);
}

/* Wait for input, or a signal. */
static int wait_input(void *ctx, struct err *e)
{
    const struct collect_calls *calls = ctx;
    struct pollfd p = { .fd = 0, .events = POLLIN };

    do
        if (outdir_go_on(e) || calls->waiting(calls->ctx, e))
            return e->code;
    while (poll(&p, 1, 100) <= 0);
    return 0;
}

int collect_pipe(struct collection *c, const char *dir,
                 const struct stream_expect *expect,
                 const struct collect_calls *calls, struct err *e)
{
    struct collect_calls own = *calls; /* ctx is not const */

    if (add_input(c, NULL, expect, e) || spool_open(&c->spool, dir, e))
        return e->code;
    stream_pass(c->in[0], NULL, ROLE_TENSOR, spool_piece, c);
    stream_on_wait(c->in[0], wait_input, &own);
    return take_all(c, "<stdin>", &own, e);
}

static int read_source(const struct collection *c, const struct ck_tensor *t,
                       uint64_t at, void *buf, size_t n, struct held *h,
                       struct err *e)
{
    if (checkpoint_has_rows(t))
        return checkpoint_read_bytes(c->source, t, at, n, buf, e);
    if (h->t != t) {
        h->t = NULL;
        if (mem_reserve(&h->data, &h->cap, t->bytes ? t->bytes : 1, t->name,
                        e) < 0 ||
            checkpoint_read(c->source, t, h->data, e))
            return e->code;
        h->t = t;
    }
    memcpy(buf, (const char *)h->data + at, n);
    return 0;
}

int collect_read(const struct collection *c, const struct out_tensor *t,
                 uint64_t at, void *buf, size_t n, struct held *h,
                 struct err *e)
{
    if (t->from)
        return read_source(c, t->from, at, buf, n, h, e);
    return t->input < 0 ?
               spool_read(c->spool, t->source + at, buf, n, e) :
               stream_payload_piece(c->in[t->input], t->source, at, buf, n, e);
}

int collect_check(const struct collection *c, struct out_tensor *t,
                  uint64_t hash, struct err *e)
{
    if (t->input < 0 && !t->from)
        return t->xxh3 == hash ? 0 :
                                 err_set(e, E_DATA,
                                         "'%s': what came from '<stdin>' is "
                                         "read back otherwise",
                                         t->name);
    t->xxh3 = hash;
    return t->from ? 0 :
                     stream_payload_check(c->in[t->input], t->source, hash, e);
}

void collection_release(struct collection *c)
{
    for (int i = 0; i < c->n_in; i++)
        stream_close(c->in[i]);
    for (size_t i = 0; i < c->n; i++) {
        free(c->tensor[i].name);
        free(c->tensor[i].stored);
    }
    spool_close(c->spool);
    free(c->in);
    free(c->tensor);
    provenance_release(&c->about);
}
