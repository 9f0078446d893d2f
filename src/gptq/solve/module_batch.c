/* module_batch.c - see module_batch.h. */
#include "gptq/solve/module_batch.h"

#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "common/io/prefetch.h"
#include "device/device.h"
#include "gptq/solve/filed.h"
#include "gptq/solve/solve.h"

/* A module of the batch: linear number `linear` of t->input[input]; input -1:
 * not solved here. */
struct member {
    const struct frame *weight; /* weight[1] is its qmeta */
    int input, linear;
    struct module_report report;
};

/* The cross moments of a module, which the frames in front of it brought: E, G
 * or F; NULL: none. */
struct moments {
    const struct frame *drift, *output, *gap;
};

/* Where an input's Hessian and E are from, and how it is refined. */
struct origin {
    const struct frame *hessian, *drift;
    struct refined_params refined;
    float *diagonal; /* with the prior */
};

/* A frame of the batch. */
struct place {
    struct loan loan;   /* to be returned with the batch; lent 0: none */
    const void *device; /* a loan's payload, mapped; NULL: it is at data */
    struct fp8_matrix
        fp8;   /* of a weight lent in 8-bit floats; data NULL: not */
    bool kept; /* for the next batch */
};

/* What module_batch_fetch() has room for: moments of each kind, and these. */
enum { FETCHED_HESSIAN = COMPANIONS, FETCHED_WEIGHT, FETCHED };

struct module_batch {
    const struct module_params *params;
    bool reads_ahead; /* frames are prefetched, modules solved in batches */
    struct prefetch *prefetch;
    struct ledger *ledger;
    struct fishers *fishers;
    struct filed *filed; /* the reading thread's */
    /* The current batch: */
    struct frame *frame; /* the prefetch's, lent weights with their data */
    struct place *place; /* [n_places]: of these */
    int n, n_places;
    const struct frame *waits; /* weight held back at the end; NULL: none */
    struct solve_input *input;
    struct origin *origin; /* of each input */
    int n_inputs;
    struct member *member; /* [n], by the index of the weight's frame */
    uint8_t *codes;        /* and the grids of the refined solver behind each */
    size_t codes_cap;
    void *fetched[FETCHED];
    size_t fetched_cap[FETCHED];
};

int module_batch_open(struct module_batch **out, const struct module_params *p,
                      struct fishers *fishers, struct ledger *l,
                      struct stream_reader *r, struct stream_writer *w,
                      struct err *e)
{
    struct module_batch *t = mem_zero(1, sizeof(*t), "solve", e);
    bool batches = device_gpu() && !p->nearest;
    struct prefetch_params a = { .bytes = batches ? PREFETCH_BYTES : 0,
                                 .frames = PREFETCH_FRAMES,
                                 .before = filed_before };
    int rc;

    if (!t)
        return e->code;
    t->params = p;
    t->ledger = l;
    t->fishers = fishers;
    t->reads_ahead = batches;
    rc = batches ? filed_open(&t->filed, p->hessian, e) : 0;
    a.arg = t->filed;
    if (rc < 0 || (rc = prefetch_open(&t->prefetch, r, w, &a, e)) < 0) {
        module_batch_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

/* ---- the modules of a batch ---- */

static void drop_batch(struct module_batch *t)
{
    for (int i = 0; i < t->n_inputs; i++) {
        factor_free(t->input[i].factor);
        free(t->origin[i].diagonal);
    }
    t->n_inputs = 0;
}

void module_batch_close(struct module_batch *t)
{
    if (!t)
        return;
    drop_batch(t);
    prefetch_close(t->prefetch);
    filed_close(t->filed);
    free(t->input);
    free(t->origin);
    free(t->member);
    free(t->codes);
    free(t->frame);
    free(t->place);
    for (size_t i = 0; i < ARRAY_LEN(t->fetched); i++)
        free(t->fetched[i]);
    free(t);
}

/* Whether h can be used for w here: packed, of w's inputs, lent with its diagonal. */
static bool fits(const struct frame *h, const struct frame *w)
{
    uint64_t cols = w->dims[1];

    return h && h->dtype == DT_F32 && !h->block && h->ndim == 1 &&
           h->dims[0] == cols * (cols + 1) / 2 &&
           (!h->loan.lent || h->about == cols * sizeof(float));
}

/* Its payload, the host's memory or the device's; f may be NULL. */
static const void *payload(const struct module_batch *t, const struct frame *f)
{
    const void *device = f ? t->place[f - t->frame].device : NULL;

    return device ? device : f ? f->data : NULL;
}

/* The diagonal of the Hessian h, with the prior, which is set; the caller frees
 * it. */
static float *diagonal_of(const struct module_batch *t, const struct frame *h,
                          uint64_t cols, double *prior, struct err *e)
{
    /* as of diagonal blocks of one input */
    const struct hessian_entry one = { .cols = cols,
                                       .block = 1,
                                       .samples = h->samples };
    bool lent = t->place[h - t->frame].device;
    const float *from = h->data;
    float *d = mem_alloc(cols * sizeof(*d), h->name, e);

    *prior = 0;
    if (!d)
        return NULL;
    for (uint64_t i = 0; i < cols; i++)
        d[i] = from[lent ? i : i * (i + 3) / 2];
    if (!tensor_name_is_expert(h->name)) /* forge-hessian has added theirs */
        *prior = hessian_file_add_prior(&one, t->params->prior, d);
    return d;
}

/* The moments that name w; false: one of them does not fit it. */
static bool moments_of(struct moments *m, const struct frame *w)
{
    const struct frame **of[] = { &m->drift, &m->output, &m->gap };

    for (size_t i = 0; i < ARRAY_LEN(of); i++) {
        const struct frame *f = *of[i];

        if (f && !frame_has_module(f, w->name))
            *of[i] = NULL;
        else if (f && (f->dims[1] != w->dims[1] ||
                       f->dims[0] != w->dims[i == 0 ? 1 : 0]))
            return false;
    }
    return true;
}

static bool same_refinement(const struct solve_input *in,
                            const struct refined_params *p, bool output)
{
    return in->refined && in->refined->gap == p->gap &&
           in->refined->fisher_sweeps == p->fisher_sweeps &&
           in->refined->block.symmetric == p->block.symmetric &&
           !in->linear[0].output == !output;
}

/* The entry of t->input for modules that share h and E, have w's group size and
 * are refined alike (starts 0: not at all): an open one, or a new one. */
static struct solve_input *input_of(struct module_batch *t,
                                    const struct origin *o, int starts,
                                    bool output, const struct frame *w)
{
    struct solve_input *in = t->input + t->n_inputs;
    struct err none;

    for (int i = t->n_inputs; i-- > 0;)
        if (t->origin[i].hessian == o->hessian &&
            t->origin[i].drift == o->drift && t->input[i].n < SOLVE_LINEARS &&
            t->input[i].params.group == w[1].group &&
            (!starts || same_refinement(&t->input[i], &o->refined, output)))
            return &t->input[i];
    t->origin[t->n_inputs] = *o;
    *in = (struct solve_input){
        .params = { .cols = w->dims[1],
                    .group = w[1].group,
                    .order = t->params->order,
                    .damping = t->params->damping },
        .h = payload(t, o->hessian),
        .refined = starts ? &t->origin[t->n_inputs].refined : NULL,
        .starts = starts,
        .drift = starts ? payload(t, o->drift) : NULL,
        .fishers = o->refined.fisher_sweeps ? t->fishers : NULL,
        /* as few wait at a time as the pipe has brought, and the order of sums
         * depends on the number of rows */
        .alone = !tensor_name_is_expert(o->hessian->name)
    };
    in->diagonal = t->origin[t->n_inputs].diagonal =
        diagonal_of(t, o->hessian, w->dims[1], &in->prior, &none);
    if (!in->diagonal)
        return NULL;
    t->n_inputs++;
    return in;
}

/* Bytes of the codes, and of the grids behind them. */
static size_t code_bytes(const struct frame *w)
{
    return (w->dims[0] * (w->dims[1] / 2) + 3) / 4 * 4;
}

static size_t room_of(const struct frame *w)
{
    return code_bytes(w) + w[1].len;
}

/* Add the module to the batch's list, its codes and grids to be written to `to`.
 * False: it cannot be solved here. */
static bool add_module(struct module_batch *t, struct member *m,
                       const struct frame *h, struct moments x, uint8_t *to)
{
    const struct frame *w = m->weight, *meta = w + 1;
    struct origin o = { .hessian = h };
    const struct place *at = &t->place[w - t->frame];
    struct solve_params shape;
    struct solve_input *in;
    struct err none;
    int starts;

    if (!fits(h, w) || module_check(w, meta, &none) < 0 || !moments_of(&x, w) ||
        (shape = module_shape(w, meta)).bits == 8 || shape.of)
        return false; /* 8 bits, some of the rows: the CPU's */
    starts = module_effort(t->params, shape.group).starts;
    if (starts) {
        o.refined =
            module_refined(t->params, &shape, *(const uint32_t *)meta->data);
        o.refined.gap = x.gap;
        o.refined.fisher_sweeps =
            fishers_have(t->fishers, w->name) ?
                fishers_sweeps(t->params->sweeps, t->params->effort, w->name) :
                0;
        o.drift = x.output || x.gap ? NULL : x.drift;
    }
    in = input_of(t, &o, starts, x.gap || x.output, w);
    if (!in)
        return false;
    m->input = (int)(in - t->input);
    m->linear = in->n++;
    in->linear[m->linear].params = shape;
    in->linear[m->linear].module = w->name;
    in->linear[m->linear].w = at->fp8.data ? NULL : w->data;
    in->linear[m->linear].fp8 = at->fp8.data ? &at->fp8 : NULL;
    in->linear[m->linear].meta = meta->data;
    in->linear[m->linear].codes = to;
    in->linear[m->linear].grids = (uint32_t *)(void *)(to + code_bytes(w));
    in->linear[m->linear].output =
        starts ? payload(t, x.gap ? x.gap : x.output) : NULL;
    return true;
}

static bool is_module(const struct module_batch *t, int i)
{
    const struct frame *f = t->frame + i;

    return i + 1 < t->n && f->role == ROLE_WEIGHT && f->ndim == 2 &&
           f[1].role == ROLE_QMETA && !strcmp(f->name, f[1].name);
}

static int reserve(struct module_batch *t, struct err *e)
{
    size_t n = (size_t)t->n, bytes = 0;

    for (int i = 0; i < t->n; i++)
        bytes += is_module(t, i) ? room_of(t->frame + i) : 0;
    if (mem_grow(&t->input, n * sizeof(*t->input), "solve", e) < 0 ||
        mem_grow(&t->origin, n * sizeof(*t->origin), "solve", e) < 0 ||
        mem_grow(&t->member, n * sizeof(*t->member), "solve", e) < 0)
        return e->code;
    return mem_reserve(&t->codes, &t->codes_cap, bytes, "solve", e);
}

/* What is no cross moment is said where it is given to module.c. */
static void take_moment(struct moments *x, const struct frame *f)
{
    struct err none;
    int kind = module_cross_kind(f, &none);

    if (kind == COMPANION_DRIFT)
        x->drift = f;
    else if (kind == COMPANION_OUTPUT)
        x->output = f;
    else if (kind == COMPANION_GAP)
        x->gap = f;
}

/* List the batch's modules by their Hessians.  A module's Hessian is the
 * input's own last one, if that names the module, else the file's last one. */
static int find_modules(struct module_batch *t, struct err *e)
{
    const struct frame *own = NULL, *filed = NULL;
    struct moments x = { 0 };
    uint8_t *to;

    if (reserve(t, e) < 0)
        return e->code;
    to = t->codes;
    for (int i = 0; i < t->n; i++) {
        const struct frame *f = t->frame + i;
        struct member *m = &t->member[i];

        *m = (struct member){ .weight = f, .input = -1 };
        if (f->role == ROLE_HESSIAN && f->ancillary)
            filed = f;
        else if (f->role == ROLE_HESSIAN)
            own = f;
        else if (f->role == ROLE_CROSS)
            take_moment(&x, f);
        if (is_module(t, i) &&
            add_module(t, m,
                       own && frame_has_module(own, f->name) ? own : filed, x,
                       to))
            to += room_of(f);
    }
    return 0;
}

/* ---- batches ---- */

static void keep(struct module_batch *t, const struct frame *f)
{
    if (!f)
        return;
    prefetch_keep(t->prefetch, (int)(f - t->frame));
    t->place[f - t->frame].kept = true;
}

/* Keep for the next batch: the last Hessian of either source, the last cross
 * moment of each kind, and a weight at the end, whose qmeta is still to come. */
static void keep_ends(struct module_batch *t)
{
    const struct frame *own = NULL, *filed = NULL;
    struct moments x = { 0 };

    for (int i = 0; t->reads_ahead && i < t->n; i++) {
        const struct frame *f = t->frame + i;

        if (f->role == ROLE_HESSIAN)
            *(f->ancillary ? &filed : &own) = f;
        else if (f->role == ROLE_CROSS)
            take_moment(&x, f);
    }
    keep(t, own);
    keep(t, filed);
    keep(t, x.drift);
    keep(t, x.output);
    keep(t, x.gap);
    t->waits = NULL;
    if (t->frame[t->n - 1].role == ROLE_WEIGHT) {
        t->waits = t->frame + --t->n;
        keep(t, t->waits);
    }
}

/* ---- loans ---- */

/* Return those of the last batch; all: also of frames that it keeps. */
static void return_loans(struct module_batch *t, bool all)
{
    for (int i = 0; i < t->n_places; i++)
        if (t->place[i].loan.lent && (all || !t->place[i].kept)) {
            ledger_return(t->ledger, &t->place[i].loan);
            t->place[i].loan.lent = 0;
        }
}

/* Map a frame's loan.  In the host's memory: the frame gets its data, but of 8-bit
 * floats. */
static int map_loan(struct module_batch *t, struct frame *f, struct place *p,
                    struct err *e)
{
    int rc = 0;

    *p = (struct place){ .loan = f->loan };
    if ((rc = lent_fp8(t->ledger, f, &p->fp8, e)))
        return rc < 0 ? rc : 0;
    if (f->loan.lent == LENT_HOST &&
        (f->role == ROLE_WEIGHT || f->role == ROLE_HESSIAN ||
         f->role == ROLE_CROSS)) {
        rc = ledger_see(t->ledger, &f->loan, f->len, &f->data, e);
        f->loan.lent = 0;
        f->about = 0;
    } else if (f->loan.lent == LENT_DEVICE &&
               (f->role == ROLE_CROSS || f->role == ROLE_HESSIAN)) {
        rc = ledger_map(t->ledger, &f->loan, &p->device, e);
    } else if (f->loan.lent) {
        return err_set(e, E_DATA, "'%s': is lent", f->name);
    }
    return rc < 0 ? err_prefix(e, "'%s'", f->name) : 0;
}

static int take_frames(struct module_batch *t, const struct frame *f,
                       struct err *e)
{
    size_t n = (size_t)t->n;

    t->n_places = 0;
    if (mem_grow(&t->frame, n * sizeof(*f), "solve", e) < 0 ||
        mem_grow(&t->place, n * sizeof(*t->place), "solve", e) < 0)
        return e->code;
    memcpy(t->frame, f, n * sizeof(*f));
    for (int i = 0; i < t->n; i++, t->n_places++)
        if (map_loan(t, &t->frame[i], &t->place[i], e) < 0)
            return e->code;
    return 0;
}

/* What has been read of loans is worth nothing where their lender has died: how the
 * input ends says why. */
static int check_lender(struct module_batch *t, struct err *e)
{
    bool lent = false;

    for (int i = 0; i < t->n_places; i++)
        lent |= t->place[i].device != NULL;
    if (!lent || ledger_was_there(t->ledger, LEDGER_HESSIANS))
        return 0;
    return prefetch_drop(t->prefetch, e);
}

int module_batch_fetch(struct module_batch *t, int i, struct frame *f,
                       struct err *e)
{
    const struct fp8_matrix *fp8 = &t->place[i].fp8;
    struct err none;
    int k = t->frame[i].role == ROLE_HESSIAN ? FETCHED_HESSIAN :
            fp8->data                        ? FETCHED_WEIGHT :
                        module_cross_kind(&t->frame[i], &none);

    *f = t->frame[i];
    if (!f->loan.lent)
        return 0;
    if (k < 0)
        return err_set(e, E_BUG, "'%s': is lent", f->name);
    if (mem_reserve(&t->fetched[k], &t->fetched_cap[k], f->len, "solve", e) < 0)
        return e->code;
    if (fp8->data)
        fp8_to_bf16(t->fetched[k], fp8);
    else if (ledger_copy(t->ledger, &f->loan, t->fetched[k], f->len, e) < 0)
        return e->code;
    f->data = t->fetched[k];
    f->loan.lent = 0;
    f->about = 0;
    return 0;
}

/* Solve what can be solved here. */
static int solve_batch(struct module_batch *t, struct err *e)
{
    if (!t->reads_ahead)
        return 0;
    if (find_modules(t, e) < 0 ||
        (t->n_inputs && solve_inputs(t->input, t->n_inputs, e) < 0))
        return e->code;
    return check_lender(t, e);
}

int module_batch_next(struct module_batch *t, const struct frame **frame,
                      int *n, struct err *e)
{
    const struct frame *f;
    int rc;

    drop_batch(t);
    return_loans(t, false);
    rc = prefetch_next(t->prefetch, &f, &t->n, e);
    if (rc <= 0)
        return_loans(t, true);
    if (rc < 0 || (!rc && !t->waits))
        return rc;
    if (rc) {
        if (take_frames(t, f, e) < 0)
            return e->code;
        keep_ends(t);
    } else { /* the input ended behind a weight: it has no qmeta */
        t->place[0] = t->place[t->waits - t->frame];
        t->frame[0] = *t->waits;
        t->waits = NULL;
        t->n = 1;
    }
    if (solve_batch(t, e) < 0)
        return e->code;
    *frame = t->frame;
    *n = t->n;
    return 1;
}

const uint8_t *module_batch_codes(const struct module_batch *t, int i,
                                  struct frame *grids,
                                  const struct module_report **report)
{
    struct member *m = t->reads_ahead ? &t->member[i] : NULL;
    const struct solve_input *in;

    if (!m || m->input < 0 || !t->input[m->input].solved)
        return NULL;
    in = &t->input[m->input];
    *grids = m->weight[1];
    m->report = (struct module_report){ .seconds = in->seconds };
    module_report_factor(&m->report, m->weight->name, in->factor,
                         t->origin[m->input].hessian->samples);
    if (in->refined) {
        grids->data = in->linear[m->linear].grids;
        module_report_refined(&m->report, t->params,
                              in->drift || in->linear[m->linear].output,
                              &in->linear[m->linear].refined);
    }
    module_report_codes(&m->report, false, t->params->order,
                        in->refined ? &in->linear[m->linear].refined.solve :
                                      &in->linear[m->linear].result);
    *report = &m->report;
    return in->linear[m->linear].codes;
}

bool module_batch_reads_ahead(const struct module_batch *t)
{
    return t->reads_ahead;
}

const char *module_batch_head(const struct module_batch *t)
{
    return prefetch_head(t->prefetch);
}
