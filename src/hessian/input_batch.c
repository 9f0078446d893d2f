/* input_batch.c - see input_batch.h. */
#include "hessian/input_batch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "common/io/prefetch.h"
#include "common/math/lanes.h"
#include "device/device.h"
#include "device/jobs.h"
#include "device/ledger.h"
#include "hessian/hessian_gpu.h"
#include "hessian/hessian_table.h"

enum {
    INPUT_BYTES = 128 << 20, /* larger inputs are accumulated frame by frame */
    AHEAD_BYTES = 32 << 20   /* of a batch without a GPU */
};

/* Of a frame: left to the caller; its Hessian is in the set; it comes again in
 * the next batch, since its input is not complete. */
enum fate { PASS, DONE, LATER };

struct input_batch {
    struct hessian_set *set;
    struct ledger *ledger;
    struct prefetch *prefetch;
    const struct frame *frame; /* [n]: the batch */
    enum fate *fate;           /* [n] */
    int n, at;
    bool batches; /* Hessians are computed on the GPU in batches */
    bool later;   /* the batch has frames of LATER */
    atomic_bool
        broken; /* the reading thread saw an element that is not finite: all
                    further frames PASS, so that hessian_add() names it */
};

/* An expert's input in the batch. */
struct input {
    int first, frames; /* index of the first frame, number */
    uint64_t tokens;
    const void *there; /* all tokens on the device; NULL: frames have them */
    uint16_t
        *rows; /* copy of all tokens when there are several frames; or NULL */
    struct hessian_made made; /* out */
};

/* Whether there is a GPU and it computes such Hessians: whole, bf16, all
 * tokens.  With parts on one machine experts' are made as where parts are merged. */
static bool makes_batches(const struct hessian_set_params *p)
{
    return device_gpu() && p->n_inputs == 1 && p->dtype != DT_F32 &&
           !p->block && !p->max_tokens && !p->partial && p->parts <= 1 &&
           !p->shares && !p->rows;
}

/* Bytes of a batch.  Without a GPU a thread reads frames of a pipe while all others
 * multiply; several inputs, or files of Hessians to be merged, are read frame by
 * frame. */
static size_t batch_bytes(const struct hessian_set_params *p,
                          struct stream_reader *r)
{
    uint64_t size;

    if (makes_batches(p))
        return PREFETCH_BYTES;
    (void)stream_bytes(r, &size);
    return p->n_inputs == 1 && !size ? AHEAD_BYTES : 0;
}

/* prefetch_params.before: look for elements that are not finite while the frame
 * is in the cache. */
static int look(void *arg, struct prefetch *a, const struct frame *f,
                const struct frame *have, int n, struct frame *more,
                struct err *e)
{
    struct input_batch *s = arg;

    (void)a, (void)have, (void)n, (void)more, (void)e;
    if (f->role == ROLE_ACTIVATION && f->dtype == DT_BF16 && !f->loan.lent &&
        !lanes_finite_bf16(f->data, f->len / sizeof(uint16_t)))
        s->broken = true;
    return 0;
}

int input_batch_open(struct input_batch **out, struct hessian_set *set,
                     const struct hessian_set_params *params,
                     struct stream_reader *r, struct stream_writer *w,
                     struct err *e)
{
    struct input_batch *s = mem_zero(1, sizeof(*s), "hessians", e);
    const struct prefetch_params p = { .bytes = batch_bytes(params, r),
                                       .frames = PREFETCH_FRAMES,
                                       .before =
                                           makes_batches(params) ? look : NULL,
                                       .arg = s };

    if (!s)
        return e->code;
    s->set = set;
    s->ledger = params->ledger;
    s->batches = makes_batches(params);
    if (prefetch_open(&s->prefetch, r, w, &p, e) < 0) {
        free(s);
        return e->code;
    }
    *out = s;
    return 0;
}

void input_batch_close(struct input_batch *s)
{
    if (!s)
        return;
    prefetch_close(s->prefetch);
    free(s->fate);
    free(s);
}

const char *input_batch_head(const struct input_batch *s)
{
    return prefetch_head(s->prefetch);
}

/* ---- which inputs are complete ---- */

static bool is_rows(const struct frame *f)
{
    return f->ndim == 2 && f->dtype == DT_BF16 && f->dims[1] &&
           f->dims[1] % 8 == 0;
}

static bool is_like(const struct frame *a, const struct frame *b)
{
    return b->role == ROLE_ACTIVATION && a->dims[1] == b->dims[1] &&
           a->loan.lent == b->loan.lent && !a->modules == !b->modules &&
           (!a->modules || !strcmp(a->modules, b->modules));
}

/* Find the rows of lent frames: in->there.  False: not one behind the other, or
 * one has an element that is not finite, or cannot be read. */
static bool find_there(const struct input_batch *s, struct input *in)
{
    const struct frame *f = s->frame + in->first;
    const char *next = NULL, *p;
    uint64_t n = in->tokens * f->dims[1], bad;
    struct err none;

    for (int i = in->first, k = 0; k < in->frames; i++) {
        const struct frame *g = s->frame + i;

        if (g->role != ROLE_ACTIVATION || strcmp(g->name, f->name))
            continue;
        if (ledger_map(s->ledger, &g->loan, (const void **)&p, &none) < 0 ||
            (k++ && p != next))
            return false;
        if (!in->there)
            in->there = p;
        next = p + g->len;
    }
    return hessian_gpu_finite(DT_BF16, in->there, n, &bad, &none) >= 0 &&
           bad == n;
}

/* The fate of frame i and of all frames of its name: DONE: the frames of an
 * expert's input, complete; LATER: more of them must come; PASS: not for the
 * GPU. */
static enum fate judge(const struct input_batch *s, int i, struct input *in)
{
    const struct frame *f = s->frame + i;
    size_t bytes = 0, name = strlen(f->name);
    bool last = false;

    *in = (struct input){ .first = i };
    if (s->broken || !hessian_set_alone(s->set, f) ||
        !tensor_name_is_expert(f->name))
        return PASS;
    for (int k = 0; k < s->n && !last; k++) {
        const struct frame *g = s->frame + k;

        if (g->role != ROLE_ACTIVATION || strncmp(g->name, f->name, name))
            continue;
        if (g->name[name] == '.' || (!g->name[name] && k < i))
            return PASS; /* a companion; an earlier frame was passed on */
        if (g->name[name])
            continue;
        if (!is_rows(g) || !is_like(f, g))
            return PASS;
        bytes += g->len;
        in->frames++;
        in->tokens += g->dims[0];
        last = g->last;
    }
    if (bytes > INPUT_BYTES)
        return PASS;
    if (last && f->loan.lent && !find_there(s, in))
        return PASS;
    return last ? DONE : LATER;
}

static void mark(struct input_batch *s, const struct input *in, enum fate fate)
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

/* The context of the jobs: a job is an input. */
struct batch_jobs {
    const struct input_batch *s;
    struct input *in;
};

/* Copy the frames of an input into one block of memory. */
static int join_rows(const struct input_batch *s, struct input *in,
                     struct err *e)
{
    const struct frame *f = s->frame + in->first;
    uint64_t cols = f->dims[1], at = 0;

    if (in->frames == 1 || in->rows || in->there)
        return 0;
    in->rows = mem_pages(in->tokens * cols * 2, f->name, e);
    if (!in->rows)
        return e->code;
    for (int i = in->first; i < s->n; i++)
        if (s->fate[i] == DONE && !strcmp(s->frame[i].name, f->name)) {
            memcpy(in->rows + at, s->frame[i].data, s->frame[i].len);
            at += s->frame[i].dims[0] * cols;
        }
    return 0;
}

static bool same_width(const void *ctx, int a, int b)
{
    const struct batch_jobs *j = ctx;

    return j->s->frame[j->in[a].first].dims[1] ==
           j->s->frame[j->in[b].first].dims[1];
}

/* Memory of the result: the solver's, or the host's. */
static int open_made(const struct input_batch *s, struct input *in,
                     struct cuda_tokens *t, struct err *e)
{
    const struct frame *f = s->frame + in->first;
    uint64_t cols = f->dims[1], n = cols * (cols + 1) / 2;

    in->made = (struct hessian_made){ .tokens = in->tokens };
    /* without tokens it will be an identity */
    if (in->tokens && hessian_set_lease(s->set, f->name, n, &in->made.lease))
        t->h = in->made.lease.block;
    else
        t->h = in->made.data = mem_pages(n * sizeof(float), f->name, e);
    t->h_there = in->made.lease.block;
    return t->h ? 0 : e->code;
}

static void drop_made(const struct input_batch *s, struct input *in)
{
    hessian_set_unlease(s->set, &in->made.lease);
    free(in->made.data);
    in->made.data = NULL;
}

static int run_inputs(void *ctx, const int *job, int n, struct err *e)
{
    const struct batch_jobs *j = ctx;
    uint64_t cols = j->s->frame[j->in[job[0]].first].dims[1];
    struct cuda_tokens *t = mem_zero((size_t)n, sizeof(*t), "hessians", e);
    int rc = t ? 0 : e->code;

    for (int i = 0; i < n && rc >= 0; i++) {
        struct input *in = j->in + job[i];
        const struct frame *f = j->s->frame + in->first;

        if ((rc = join_rows(j->s, in, e)) < 0)
            break;
        t[i].x = in->there ? in->there : in->rows ? in->rows : f->data;
        t[i].x_there = in->there;
        t[i].tokens = in->tokens;
        rc = open_made(j->s, in, &t[i], e);
    }
    if (rc >= 0)
        rc = hessian_gpu_batch(cols, t, n, e);
    free(t);
    for (int i = 0; i < n && rc < 0; i++)
        drop_made(j->s, j->in + job[i]);
    return rc;
}

/* Put the Hessians that are done into the set.  Those that failed PASS:
 * accumulated frame by frame they fail with a message, or succeed on the CPU.
 * rc: what jobs_run() returned. */
static int give(struct input_batch *s, struct input *in, const bool *done,
                int n, int rc, struct err *e)
{
    for (int i = 0; i < n; i++) {
        if (rc < 0)
            drop_made(s, &in[i]);
        else if (!done[i])
            mark(s, &in[i], PASS);
        else
            rc = hessian_set_given(s->set, s->frame + in[i].first, &in[i].made,
                                   e);
        free(in[i].rows);
    }
    return rc;
}

/* rc, of reading loans; where their lender has died, how the input ends. */
static int check_lender(struct input_batch *s, const struct input *in, int n,
                        int rc, struct err *e)
{
    bool lent = false;

    for (int i = 0; i < n; i++)
        lent |= in[i].there != NULL;
    return rc < 0 && lent && !ledger_was_there(s->ledger, LEDGER_ACTIVATIONS) ?
               prefetch_drop(s->prefetch, e) :
               rc;
}

static int work(struct input_batch *s, struct err *e)
{
    size_t n = (size_t)s->n;
    struct input *in = mem_zero(n, sizeof(*in), "hessians", e);
    bool *done = in ? mem_zero(n, 1, "hessians", e) : NULL;
    struct batch_jobs ctx = { s, in };
    const struct jobs jobs = { same_width, run_inputs, &ctx };
    int count = 0, rc;

    if (!done || mem_grow(&s->fate, n * sizeof(*s->fate), "hessians", e) < 0) {
        free(in);
        free(done);
        return e->code;
    }
    for (int i = 0; i < s->n; i++)
        s->fate[i] = PASS;
    s->later = false;
    for (int i = 0; s->batches && i < s->n; i++)
        if (s->fate[i] == PASS) {
            enum fate fate = judge(s, i, &in[count]);

            if (fate != PASS)
                mark(s, &in[count], fate);
            count += fate == DONE;
        }
    rc = count ? jobs_run(&jobs, count, done, e) : 0;
    rc = give(s, in, done, count, rc, e);
    rc = check_lender(s, in, count, rc, e);
    free(in);
    free(done);
    return rc;
}

static int next_batch(struct input_batch *s, struct err *e)
{
    int rc = prefetch_next(s->prefetch, &s->frame, &s->n, e);

    if (rc < 0 || (!rc && !s->later))
        return rc;
    s->at = 0;
    if (rc)
        return work(s, e) < 0 ? e->code : 1;
    for (int i = 0; i < s->n; i++) /* the input ended: pass what was kept */
        s->fate[i] = s->fate[i] == LATER ? PASS : LATER;
    s->later = false;
    return 1;
}

int input_batch_next(struct input_batch *s, struct frame *f, bool *given,
                     struct err *e)
{
    int rc;

    do
        if (s->at == s->n && (rc = next_batch(s, e)) <= 0)
            return rc;
    while (s->fate[s->at++] == LATER);
    *f = s->frame[s->at - 1];
    *given = s->fate[s->at - 1] == DONE;
    return 1;
}
