/* forge-solve - choose the 4-bit codes of weights: GPTQ, or round to nearest.
 *
 * Replaces each `weight` that a `qmeta` follows by `codes`, `qmeta` and a
 * `note`; see forge-solve(1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arch/tensor_name.h"
#include "gptq/solve/module_batch.h"
#include "gptq/solve/solve_options.h"
#include "gptq/solve/solve_table.h"

struct run {
    struct solve_settings *s;
    struct stream_reader *in;
    struct ledger *ledger;
    struct stream_writer *out;
    struct module_batch *batch;
    struct module_solver *solver; /* solves one module at a time */
    /* Numbers of frames of the batch, not yet given to solver; -1: none. */
    int hessian;           /* the last one */
    int cross[COMPANIONS]; /* the same of each kind */
    struct publish *report;
    struct progress progress;
    bool begun;
    bool passed; /* a weight without a qmeta has passed through */
    double loss, loss_rtn;
    uint64_t modules, rows_kept;
};

static int open_all(struct run *r, const char *path, struct err *e)
{
    const struct solve_settings *s = r->s;
    struct stream_expect expect = { .key = s->tool.expect_key };
    struct stream_output out = { .path = s->tool.output, .key = s->tool.key };
    int rc;

    expect.loans = s->loans;
    if ((rc = ledger_open(&r->ledger, s->loans, e)) < 0 ||
        (rc = device_open(&s->device, &solve_plugin, e)) < 0 ||
        (rc = ledger_reads(r->ledger, LEDGER_HESSIANS, e)) < 0 ||
        (rc = ledger_reads(r->ledger, LEDGER_WEIGHTS, e)) < 0 ||
        (rc = stream_open(&r->in, path, &expect, e)) < 0 ||
        (rc = module_open(&r->solver, &s->module, e)) < 0)
        return rc;
    if (s->report && (rc = publish_create(&r->report, s->report, e)) < 0)
        return rc;
    if (stream_create(&r->out, &out, e) < 0)
        return e->code;
    return module_batch_open(&r->batch, &s->module, module_fishers(r->solver),
                             r->ledger, r->in, r->out, e);
}

/* Write a module's codes, grids, note and report line; add up its losses. */
static int put(struct run *r, const struct frame *w, const struct frame *grids,
               const uint8_t *codes, const struct module_report *report,
               struct err *e)
{
    const struct module_output to = { r->out, r->ledger, r->report };

    if (module_write(report, w, grids, codes, &to, e) < 0)
        return e->code;
    r->modules++;
    r->rows_kept += report->rows_kept;
    r->loss += report->loss;
    r->loss_rtn += report->loss_rtn;
    r->progress.loss = report->measured ? report->loss : -1;
    return 0;
}

/* Pass the batch's last Hessian and cross moments to the solver, once, when a
 * module needs them. */
static int give_hessian(struct run *r, struct err *e)
{
    int i = r->hessian;
    struct frame h;

    r->hessian = -1;
    if (i < 0)
        return 0;
    return module_batch_fetch(r->batch, i, &h, e) < 0 ?
               e->code :
               module_hessian(r->solver, &h, e);
}

static int give_cross(struct run *r, struct err *e)
{
    struct frame f;
    int rc = 0;

    for (int i = 0; i < COMPANIONS && rc >= 0; i++) {
        if (r->cross[i] >= 0 &&
            (rc = module_batch_fetch(r->batch, r->cross[i], &f, e)) >= 0)
            rc = module_cross(r->solver, &f, e);
        r->cross[i] = -1;
    }
    return rc;
}

static int put_cross(struct run *r, const struct frame *f, int i, struct err *e)
{
    int kind = module_cross_kind(f, e);

    if (kind < 0)
        return kind;
    r->cross[kind] = i;
    return module_batch_reads_ahead(r->batch) ? 0 : give_cross(r, e);
}

/* Solve frame i of the batch, *f, which was not solved with it. */
static int solve_module(struct run *r, const struct frame *f, int i,
                        struct err *e)
{
    /* no overflow: less than the weight's own bytes */
    size_t len = f->dims[0] * f->dims[1]; /* in 4 bits half of it is used */
    struct frame grids = f[1], w;
    struct module_report report;
    uint8_t *codes = NULL;
    uint32_t *g = NULL;
    int rc = give_hessian(r, e);

    if (rc >= 0)
        rc = give_cross(r, e);
    if (rc >= 0)
        rc = module_batch_fetch(r->batch, i, &w, e);
    if (rc >= 0)
        codes = mem_pages(len, f->name, e);
    if (codes)
        g = mem_pages(grids.len, f->name, e);
    if (!g) {
        free(codes);
        return e->code;
    }
    grids.data = memcpy(g, grids.data, grids.len);
    rc = module_solve(r->solver, &w, f + 1, g, codes, &report, e);
    if (rc >= 0)
        rc = put(r, &w, &grids, codes, &report, e);
    free(codes);
    free(g);
    return rc;
}

/* Frame i of the batch. */
static int put_other(struct run *r, const struct frame *f, int i, struct err *e)
{
    struct frame w;

    if (f->role == ROLE_CROSS)
        return put_cross(r, f, i, e);
    if (f->role == ROLE_HESSIAN) {
        r->hessian = f->ancillary ? r->hessian : i;
        return module_batch_reads_ahead(r->batch) ? 0 : give_hessian(r, e);
    }
    r->passed |= f->role == ROLE_WEIGHT; /* without a qmeta: not to be solved */
    return module_batch_fetch(r->batch, i, &w, e) < 0 ?
               e->code :
               stream_write(r->out, &w, e);
}

/* Handle the n frames of a batch; a module is a weight and the qmeta behind
 * it. */
static int put_batch(struct run *r, const struct frame *f, int n, struct err *e)
{
    int rc = 0;

    r->hessian = -1;
    memset(r->cross, -1, sizeof(r->cross));
    for (int i = 0; i < n && rc >= 0; i++) {
        const struct module_report *report;
        struct frame grids;
        const uint8_t *codes = module_batch_codes(r->batch, i, &grids, &report);

        if (codes)
            rc = put(r, &f[i], &grids, codes, report, e);
        else if (i + 1 < n && f[i].role == ROLE_WEIGHT &&
                 f[i + 1].role == ROLE_QMETA &&
                 !strcmp(f[i].name, f[i + 1].name))
            rc = solve_module(r, &f[i], i, e);
        else {
            rc = put_other(r, &f[i], i, e);
            progress_step(&r->progress, f[i].name, f[i].len);
            continue;
        }
        for (int k = 0; k < 2; k++)
            progress_step(&r->progress, f[i + k].name, f[i + k].len);
        i++;
    }
    return rc;
}

/* Write HEAD before the first frame; head: the input's HEAD. */
static int begin(struct run *r, const char *head, struct err *e)
{
    if (r->begun)
        return 0;
    r->begun = true;
    return stream_inherit(r->out, head, e) < 0 ?
               e->code :
               module_inherit(r->solver, r->out, e);
}

static int run(struct run *r, struct err *e)
{
    const struct frame *f;
    int n, rc;

    while ((rc = module_batch_next(r->batch, &f, &n, e)) > 0)
        if (begin(r, module_batch_head(r->batch), e) < 0 ||
            put_batch(r, f, n, e) < 0)
            return e->code;
    return rc < 0 || !r->passed || r->modules ?
               rc : /* weights, but no grid for any of them */
               err_set(e, E_DATA, "no grids: is forge-grid missing?");
}

int main(int argc, char **argv)
{
    struct solve_settings s = { .device.factors = true };
    struct run r = { .s = &s };
    char text[MODULE_SUMMARY];
    struct err e;
    int first = solve_parse(&s, argc, argv);

    if (argc - first > 1)
        die(E_USAGE, "takes one file at most (try --help)");
    if (open_all(&r, first < argc ? argv[first] : NULL, &e) < 0) {
        publish_discard(r.report);
        tool_fail(r.out, &e);
    }
    progress_start(&r.progress, s.tool.progress, "tensors", 0);
    if (!s.module.nearest && (s.loans || s.module.hessian))
        device_prepare(true);
    if (run(&r, &e) < 0) {
        publish_discard(r.report);
        tool_fail(r.out, &e);
    }
    /* the report first: codes without it would be an output of a failed run */
    if (r.report && publish_commit(r.report, &e) < 0)
        tool_fail(r.out, &e);
    tool_finish(r.out, &r.progress,
                module_summary(text, r.modules, r.loss, r.loss_rtn,
                               module_fallbacks(r.solver), r.rows_kept));
    module_batch_close(r.batch);
    stream_close(r.in);
    module_close(r.solver);
    ledger_close(r.ledger);
    return 0;
}
