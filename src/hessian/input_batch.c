/* several.c - see several.h. */
#include "hessian/input_batch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "common/io/prefetch.h"
#include "common/math/lanes.h"
#include "device/device.h"
#include "hessian/hessian_gpu.h"
#include "hessian/hessian_table.h"

enum { INPUT_BYTES = 128 << 20 }; /* larger ones are added up as they come */

enum fate { PASS, GIVEN, LATER };

struct several {
    struct hessian_set *collect;
    struct prefetch *prefetch;
    const struct frame *frame; /* the batch */
    enum fate *fate;           /* of each */
    int n, at;
    bool later; /* some are to come again */
    atomic_bool
        broken; /* the reading thread saw a number that is not finite: from
                    there on hessian_add() looks for it */
};

/* The frames of an input in a batch, and what it becomes. */
struct input {
    int first, frames;
    uint64_t tokens;
    uint16_t *rows; /* all tokens, where there are several frames; or NULL */
    bool done;
};

bool several_wanted(const struct hessian_set_params *p)
{
    return device_gpu() && p->dtype != DT_F32 && !p->block && !p->max_tokens;
}

/* Looked at while it is in the cache. */
static int look(void *arg, struct prefetch *a, const struct frame *f,
                const struct frame *have, int n, struct frame *more,
                struct err *e)
{
    struct several *s = arg;

    (void)a, (void)have, (void)n, (void)more, (void)e;
    if (f->role == ROLE_ACTIVATION && f->dtype == DT_BF16 &&
        !lanes_finite_bf16(f->data, f->len / sizeof(uint16_t)))
        s->broken = true;
    return 0;
}

int several_open(struct several **out, struct hessian_set *c,
                 struct stream_reader *r, struct stream_writer *w,
                 struct err *e)
{
    struct several *s = mem_zero(1, sizeof(*s), "hessians", e);
    const struct prefetch_params p = { .bytes = PREFETCH_BYTES,
                                       .frames = PREFETCH_FRAMES,
                                       .before = look,
                                       .arg = s };

    if (!s)
        return e->code;
    s->collect = c;
    if (prefetch_open(&s->prefetch, r, w, &p, e) < 0) {
        free(s);
        return e->code;
    }
    *out = s;
    return 0;
}

void several_close(struct several *s)
{
    if (!s)
        return;
    prefetch_close(s->prefetch);
    free(s->fate);
    free(s);
}

const char *several_head(const struct several *s)
{
    return prefetch_head(s->prefetch);
}

/* ---- which inputs are whole ---- */

static bool is_rows(const struct frame *f)
{
    return f->ndim == 2 && f->dtype == DT_BF16 && f->dims[1] &&
           f->dims[1] % 8 == 0;
}

static bool is_like(const struct frame *a, const struct frame *b)
{
    return b->role == ROLE_ACTIVATION && a->dims[1] == b->dims[1] &&
           !a->modules == !b->modules &&
           (!a->modules || !strcmp(a->modules, b->modules));
}

/* Frame i and those of its name behind it: GIVEN: an expert's, whole; LATER:
 * not yet; PASS: not here. */
static enum fate judge(const struct several *s, int i, struct input *in)
{
    const struct frame *f = s->frame + i;
    size_t bytes = 0, name = strlen(f->name);
    bool last = false;

    *in = (struct input){ .first = i };
    if (s->broken || !hessian_set_alone(s->collect, f) ||
        !tensor_name_is_expert(f->name))
        return PASS;
    for (int k = 0; k < s->n && !last; k++) {
        const struct frame *g = s->frame + k;

        if (g->role != ROLE_ACTIVATION || strncmp(g->name, f->name, name))
            continue;
        if (g->name[name] == '.' || (!g->name[name] && k < i))
            return PASS; /* what belongs to it; a frame that was passed */
        if (g->name[name])
            continue;
        if (!is_rows(g) || !is_like(f, g))
            return PASS;
        bytes += g->len;
        in->frames++;
        in->tokens += g->dims[0];
        last = g->last;
    }
    return bytes > INPUT_BYTES ? PASS : last ? GIVEN : LATER;
}

static void mark(struct several *s, const struct input *in, enum fate fate)
{
    for (int i = in->first; i < s->n; i++)
        if (!strcmp(s->frame[i].name, s->frame[in->first].name) &&
            s->frame[i].role == ROLE_ACTIVATION) {
            s->fate[i] = fate;
            if (fate == LATER)
                prefetch_keep(s->prefetch, i);
        }
    s->later |= fate == LATER;
}

/* ---- their Hessians ---- */

/* One block of memory with all tokens. */
static int join_rows(const struct several *s, struct input *in, struct err *e)
{
    const struct frame *f = s->frame + in->first;
    uint64_t cols = f->dims[1], at = 0;

    if (in->frames == 1)
        return 0;
    in->rows = mem_pages(in->tokens * cols * 2, f->name, e);
    if (!in->rows)
        return e->code;
    for (int i = in->first; i < s->n; i++)
        if (s->fate[i] == GIVEN && !strcmp(s->frame[i].name, f->name)) {
            memcpy(in->rows + at, s->frame[i].data, s->frame[i].len);
            at += s->frame[i].dims[0] * cols;
        }
    return 0;
}

/* The inputs of one width, from the first one on; t: room for all. */
static int give_width(struct several *s, struct input *in, int n,
                      struct cuda_tokens *t, struct err *e)
{
    uint64_t cols = s->frame[in->first].dims[1];
    int count = 0, rc = 0;

    for (int i = 0; i < n && rc >= 0; i++) {
        const struct frame *f = s->frame + in[i].first;

        if (in[i].done || f->dims[1] != cols)
            continue;
        rc = join_rows(s, &in[i], e);
        t[count].x = in[i].rows ? in[i].rows : f->data;
        t[count].tokens = in[i].tokens;
        t[count].h =
            rc < 0 ? NULL : mem_pages(cols * (cols + 1) * 2, f->name, e);
        rc = t[count].h ? 0 : e->code;
        count++;
    }
    if (rc >= 0)
        rc = hessian_gpu_several(cols, t, count, e);
    count = 0;
    for (int i = 0; i < n; i++) {
        const struct frame *f = s->frame + in[i].first;

        if (in[i].done || f->dims[1] != cols)
            continue;
        in[i].done = true;
        if (rc < 0)
            free(t[count].h);
        else
            rc = hessian_set_given(s->collect, f, in[i].tokens, t[count].h, e);
        count++;
        free(in[i].rows);
    }
    return rc;
}

static int give(struct several *s, struct input *in, int n, struct err *e)
{
    struct cuda_tokens *t = mem_zero((size_t)n, sizeof(*t), "hessians", e);
    int rc = t ? 0 : e->code;

    for (int i = 0; i < n && rc >= 0; i++)
        if (!in[i].done)
            rc = give_width(s, in + i, n - i, t, e);
    free(t);
    return rc;
}

static int work(struct several *s, struct err *e)
{
    struct input *in = mem_zero((size_t)s->n, sizeof(*in), "hessians", e);
    int count = 0, rc;

    if (!in || mem_grow(&s->fate, (size_t)s->n * sizeof(*s->fate), "hessians",
                        e) < 0) {
        free(in);
        return e->code;
    }
    for (int i = 0; i < s->n; i++)
        s->fate[i] = PASS;
    s->later = false;
    for (int i = 0; i < s->n; i++)
        if (s->fate[i] == PASS) {
            enum fate fate = judge(s, i, &in[count]);

            if (fate != PASS)
                mark(s, &in[count], fate);
            count += fate == GIVEN;
        }
    rc = give(s, in, count, e);
    free(in);
    return rc;
}

static int next_batch(struct several *s, struct err *e)
{
    int rc = prefetch_next(s->prefetch, &s->frame, &s->n, e);

    if (rc < 0 || (!rc && !s->later))
        return rc;
    s->at = 0;
    if (rc)
        return work(s, e) < 0 ? e->code : 1;
    for (int i = 0; i < s->n; i++) /* the last batch: no more comes of these */
        s->fate[i] = s->fate[i] == LATER ? PASS : LATER;
    s->later = false;
    return 1;
}

int several_next(struct several *s, struct frame *f, bool *given, struct err *e)
{
    int rc;

    do
        if (s->at == s->n && (rc = next_batch(s, e)) <= 0)
            return rc;
    while (s->fate[s->at++] == LATER);
    *f = s->frame[s->at - 1];
    *given = s->fate[s->at - 1] == GIVEN;
    return 1;
}
