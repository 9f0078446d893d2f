/* runstream.c - see runstream.h. */
#include "report/runstream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The codes whose notes follow. */
struct codes {
    char name[FRAME_NAME_MAX + 1];
    uint64_t weights;
};

static void take_codes(struct codes *c, const struct frame *f)
{
    snprintf(c->name, sizeof(c->name), "%s", f->name);
    c->weights = f->ndim == 2 ? f->dims[0] * f->dims[1] : 0;
}

static int take(const struct runstream *s, const struct codes *c,
                const struct frame *f, struct err *e)
{
    struct records *r = s->records;

    if (f->role == ROLE_HITMAP)
        return hitmaps_add(s->hits, f, e);
    if (records_note(r, f->name, f->data, f->len, e) < 0)
        return e->code;
    if (r->modules && !strcmp(r->module[r->modules - 1].name, c->name))
        r->module[r->modules - 1].weights = c->weights;
    return 0;
}

static int one(const struct runstream *s, struct stream_reader *r,
               struct codes *c, struct frame *f, uint64_t at, struct err *e)
{
    void *payload = NULL;
    int rc = 0;

    if (f->role == ROLE_TOKENS && f->ndim == 1 && s->tokens) {
        s->tokens->sequences++;
        s->tokens->tokens += f->dims[0];
    }
    if (f->role == ROLE_CODES)
        take_codes(c, f);
    if (f->role != ROLE_HITMAP && !(f->role == ROLE_NOTE && s->records))
        return 0;
    if (!f->data) {
        payload = mem_alloc(f->len, f->name, e);
        if (!payload)
            return e->code;
        rc = stream_payload(r, at, payload, f->len, e);
        f->data = payload;
    }
    if (rc >= 0)
        rc = take(s, c, f, e);
    free(payload);
    return rc;
}

static int keep_head(char **head, const char *text, struct err *e)
{
    size_t n = strlen(text) + 1;

    *head = mem_alloc(n, "report", e);
    if (!*head)
        return e->code;
    memcpy(*head, text, n);
    return 0;
}

int runstream_read(const struct runstream *s, const char *path, struct err *e)
{
    const struct stream_expect expect = { 0 };
    struct codes codes = { .weights = 0 };
    struct stream_reader *r;
    struct frame f;
    uint64_t at;
    int rc;

    if (stream_open(&r, path, &expect, e) < 0)
        return e->code;
    while ((rc = stream_skim(r, &f, &at, e)) > 0) {
        rc = one(s, r, &codes, &f, at, e);
        if (rc < 0) {
            err_prefix(e, "'%s'", path);
            break;
        }
    }
    if (rc >= 0 && s->head && !*s->head && stream_head(r))
        rc = keep_head(s->head, stream_head(r), e);
    stream_close(r);
    return rc;
}
