/* forge-solve - choose the 4-bit codes of weights: GPTQ, or round to nearest.
 *
 * Replaces each `weight` that a `qmeta` follows by `codes`, `qmeta` and a
 * `note`; see forge-solve(1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gptq/solve/module_batch.h"
#include "gptq/solve/solve_options.h"
#include "gptq/solve/solve_table.h"

struct run {
    struct solve_settings *s;
    struct stream_reader *in;
    struct stream_writer *out;
    struct module_solver *solver;
    struct together *together; /* NULL: one module at a time */
    struct publish *report;
    struct progress progress;
    struct frame weight; /* waits for its qmeta; role 0: none */
    char *payload;       /* of weight */
    bool begun;
    bool passed; /* weights without grids were there */
    double loss, loss_rtn;
    uint64_t modules;
};

static int open_all(struct run *r, const char *path, struct err *e)
{
    const struct solve_settings *s = r->s;
    struct stream_expect expect = { .key = s->tool.expect_key };
    struct stream_output out = { .path = s->tool.output, .key = s->tool.key };
    int rc;

    if ((rc = device_open(&s->device, &solve_plugin, e)) < 0 ||
        (rc = stream_open(&r->in, path, &expect, e)) < 0 ||
        (rc = module_open(&r->solver, &s->module, e)) < 0)
        return rc;
    if (s->report && (rc = publish_create(&r->report, s->report, e)) < 0)
        return rc;
    if (stream_create(&r->out, &out, e) < 0)
        return e->code;
    if (together_wanted(&s->module))
        return together_open(&r->together, &s->module, r->in, r->out, e);
    stream_tie(r->in, r->out);
    return 0;
}

/* The codes of a module, its grids and what is noted about it. */
static int put(struct run *r, const struct frame *w, const struct frame *grids,
               const uint8_t *codes, const struct module_report *note,
               struct err *e)
{
    if (module_write(note, w, grids, codes, r->out, r->report, e) < 0)
        return e->code;
    r->modules++;
    r->loss += note->loss;
    r->loss_rtn += note->loss_rtn;
    r->progress.loss = note->measured ? note->loss : -1;
    return 0;
}

static int solve(struct run *r, const struct frame *meta, struct err *e)
{
    const struct frame *w = &r->weight;
    size_t len = w->dims[0] * (w->dims[1] / 2); /* less than the weight's */
    struct frame grids = *meta;
    struct module_report note;
    uint8_t *codes = mem_pages(len, w->name, e);
    uint32_t *g = codes ? mem_pages(meta->len, w->name, e) : NULL;
    int rc;

    if (!g) {
        free(codes);
        return e->code;
    }
    grids.data = memcpy(g, meta->data, meta->len);
    rc = module_solve(r->solver, w, meta, g, codes, &note, e);
    if (rc >= 0)
        rc = put(r, w, &grids, codes, &note, e);
    free(codes);
    free(g);
    return rc;
}

/* The weight that waits has no qmeta: it is somebody else's. */
static int pass_weight(struct run *r, struct err *e)
{
    int rc = r->weight.role ? stream_write(r->out, &r->weight, e) : 0;

    r->passed |= r->weight.role != ROLE_NONE;

    r->weight.role = ROLE_NONE;
    return rc;
}

static int keep_weight(struct run *r, const struct frame *f, struct err *e)
{
    free(r->payload);
    r->payload = mem_pages(f->len, f->name, e);
    if (!r->payload)
        return e->code;
    memcpy(r->payload, f->data, f->len);
    r->weight = *f;
    r->weight.data = r->payload;
    r->weight.modules = NULL;
    return 0;
}

static int one(struct run *r, const struct frame *f, struct err *e)
{
    int rc;

    if (f->role == ROLE_QMETA && r->weight.role &&
        !strcmp(f->name, r->weight.name)) {
        rc = solve(r, f, e);
        r->weight.role = ROLE_NONE;
        return rc;
    }
    if ((rc = pass_weight(r, e)) < 0)
        return rc;
    if (f->role == ROLE_CROSS)
        return module_cross(r->solver, f, e);
    if (f->role == ROLE_HESSIAN)
        return module_hessian(r->solver, f, e);
    return f->role == ROLE_WEIGHT ? keep_weight(r, f, e) :
                                    stream_write(r->out, f, e);
}

/* Before the first frame; head: of the input. */
static int begin(struct run *r, const char *head, struct err *e)
{
    if (r->begun)
        return 0;
    r->begun = true;
    return stream_inherit(r->out, head, e) < 0 ?
               e->code :
               stream_inherit(r->out, module_head(r->solver), e);
}

/* The input has ended: weights of which none has a grid were to have some. */
static int end(struct run *r, struct err *e)
{
    if (pass_weight(r, e) < 0)
        return e->code;
    return !r->passed || r->modules ?
               0 :
               err_set(e, E_DATA, "no grids: is forge-grid missing?");
}

static int run(struct run *r, struct err *e)
{
    struct frame f;
    int rc;

    while ((rc = stream_next(r->in, &f, e)) > 0) {
        if (begin(r, stream_head(r->in), e) < 0 || one(r, &f, e) < 0)
            return e->code;
        progress_step(&r->progress, f.name, f.len);
    }
    return rc < 0 ? rc : end(r, e);
}

/* The frames of a batch whose modules have been solved, as far as they could
 * be.  A Hessian goes to the solver of one module at a time when it is needed
 * there. */
static int put_batch(struct run *r, const struct frame *f, int n, struct err *e)
{
    const struct frame *hessian = NULL;

    for (int i = 0; i < n; i++) {
        const struct module_report *note;
        const uint8_t *codes = together_codes(r->together, i, &note);
        int rc = 0;

        if (codes) {
            rc = pass_weight(r, e);
            if (rc >= 0)
                rc = put(r, &f[i], &f[i + 1], codes, note, e);
            progress_step(&r->progress, f[i].name, f[i].len);
            i++; /* its qmeta */
        } else if (f[i].role == ROLE_HESSIAN) {
            hessian = f[i].ancillary ? hessian : &f[i];
        } else {
            if (f[i].role == ROLE_WEIGHT && hessian) {
                rc = one(r, hessian, e);
                hessian = NULL;
            }
            if (rc >= 0)
                rc = one(r, &f[i], e);
        }
        if (rc < 0)
            return rc;
        progress_step(&r->progress, f[i].name, f[i].len);
    }
    return 0;
}

static int run_together(struct run *r, struct err *e)
{
    const struct frame *f;
    int n, rc;

    while ((rc = together_next(r->together, &f, &n, e)) > 0)
        if (begin(r, together_head(r->together), e) < 0 ||
            put_batch(r, f, n, e) < 0)
            return e->code;
    return rc < 0 ? rc : end(r, e);
}

int main(int argc, char **argv)
{
    struct solve_settings s = { .order = 0 };
    struct run r = { .s = &s };
    char text[MODULE_SUMMARY];
    struct err e;
    int first = solve_parse(&s, argc, argv);

    if (argc - first > 1)
        die(E_USAGE, "takes one file at most (try --help)");
    if (open_all(&r, first < argc ? argv[first] : NULL, &e) < 0) {
        publish_discard(r.report);
        die_err(&e);
    }
    progress_start(&r.progress, s.tool.progress, "tensors", 0);
    if ((r.together ? run_together(&r, &e) : run(&r, &e)) < 0) {
        err_print(&e);
        publish_discard(r.report);
        stream_abort(r.out, &e);
        _exit(-e.code);
    }
    /* the report first: codes without it would be an output of a failed run */
    if (r.report && publish_commit(r.report, &e) < 0) {
        stream_abort(r.out, &e);
        die_err(&e);
    }
    if (stream_finish(r.out, &e) < 0)
        die_err(&e);
    progress_finish(&r.progress,
                    module_summary(text, r.modules, r.loss, r.loss_rtn,
                                   module_fallbacks(r.solver)));
    together_close(r.together);
    stream_close(r.in);
    module_close(r.solver);
    free(r.payload);
    return 0;
}
