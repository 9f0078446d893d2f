/* module.c - see module.h. */
#include "gptq/solve/module.h"
#include "arch/tensor_name.h"
#include "gptq/solve/module_rows.h"
#include "gptq/solve/solve_cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "device/device.h"

struct module_solver {
    struct module_params params;
    struct hessian_file *hessians;
    struct fishers *fishers; /* the batch's, too */
    /* The factor of the last Hessian, for all modules that share its input. */
    struct factor *factor;
    const struct hessian_entry *entry;
    float *hessian; /* entry's payload with the prior while it may be needed
                       again (another group, the CPU, Fisher descent); or NULL */
    bool early;     /* factored before its first module came: the group size was
                   taken from the module before, and may differ */
    uint64_t cols, group;
    bool failed;  /* no damping made it positive definite */
    double prior; /* what was added to the Hessian's diagonal */
    bool on_cpu;  /* the GPU has declined a module of this Hessian */
    uint64_t fallbacks;
    double *tiles; /* solve_params.tiles of the last module */
    struct refined_hessian
        refined; /* in place of factor when the effort is above EFFORT_FAST */
    struct cross {
        char *name, *modules; /* NULL: none */
        float *data;
        uint64_t rows, cols;
    } drift, output, gap;
};

static const char *const effort_names[] = { "fast", "default", "best" };

static void drop_factors(struct module_solver *m)
{
    factor_free(m->factor);
    refined_close(&m->refined);
    free(m->hessian);
    m->factor = NULL;
    m->entry = NULL;
    m->hessian = NULL;
}

static void drop_cross(struct cross *c)
{
    free(c->name);
    free(c->modules);
    free(c->data);
    *c = (struct cross){ 0 };
}

int module_open(struct module_solver **out, const struct module_params *p,
                struct err *e)
{
    struct module_solver *m = mem_zero(1, sizeof(*m), "solve", e);

    if (!m)
        return e->code;
    m->params = *p;
    if (hessian_file_open(&m->hessians, p->hessian, NULL, e) < 0 ||
        fishers_open(&m->fishers, p->fisher, e) < 0) {
        module_close(m);
        return e->code;
    }
    *out = m;
    return 0;
}

void module_close(struct module_solver *m)
{
    if (!m)
        return;
    drop_factors(m);
    drop_cross(&m->drift);
    drop_cross(&m->output);
    drop_cross(&m->gap);
    hessian_file_close(m->hessians);
    fishers_close(m->fishers);
    free(m->tiles);
    free(m);
}

int module_inherit(const struct module_solver *m, struct stream_writer *out,
                   struct err *e)
{
    int rc = stream_inherit(out, hessian_file_head(m->hessians), e);

    return rc < 0 ? rc : stream_inherit(out, fishers_head(m->fishers), e);
}

struct fishers *module_fishers(const struct module_solver *m)
{
    return m->fishers;
}

uint64_t module_fallbacks(const struct module_solver *m)
{
    return m->fallbacks;
}

int module_check(const struct frame *w, const struct frame *meta, struct err *e)
{
    struct name_rows rows;
    size_t len;

    if (w->ndim != 2 || !dtype_is_float(w->dtype) || !w->dims[0] || !w->dims[1])
        return err_set(e, E_DATA, "'%s': a weight is a matrix of floats",
                       w->name);
    if (w->dims[1] % 2 || w->dims[1] > INT32_MAX)
        return err_set(e, E_DATA,
                       "'%s': %llu inputs: codes want an even number", w->name,
                       (unsigned long long)w->dims[1]);
    if (meta->ndim != 2 || meta->dtype != DT_QMETA4 || !meta->group ||
        meta->dims[0] != w->dims[0] ||
        meta->dims[1] != quant_groups(w->dims[1], meta->group))
        return err_set(e, E_DATA, "'%s': its qmeta does not fit its weight",
                       w->name);
    if (!quant_same_bits(meta->data, meta->len / sizeof(uint32_t)))
        return err_set(e, E_DATA, "'%s': grids of 4 bits and of 8", w->name);
    if (name_rows_of(w->name, &len, &rows) &&
        (rows.end - rows.first != w->dims[0] || rows.first % SOLVE_ROWS))
        return err_set(e, E_DATA,
                       "'%s': other rows, or not from a multiple of %d on",
                       w->name, SOLVE_ROWS);
    if (meta->scale_dtype != DT_F16 && meta->scale_dtype != DT_BF16)
        return err_set(e, E_DATA, "'%s': qmeta with scales of type %s", w->name,
                       dtype_name(meta->scale_dtype));
    return 0;
}

struct effort_plan module_effort(const struct module_params *m, uint64_t group)
{
    bool can = tile_fits(group) && !m->nearest;
    struct effort_plan p = effort_plan(can ? m->effort : EFFORT_FAST);

    if (m->sweeps >= 0)
        p.sweeps = m->sweeps;
    if (m->factors && p.starts)
        p.factors = p.shrinks = m->factors;
    return p;
}

struct refined_params module_refined(const struct module_params *m,
                                     const struct solve_params *s,
                                     uint32_t grid)
{
    struct effort_plan plan = module_effort(m, s->group);
    bool symmetric = quant_is_symmetric(grid);

    return (struct refined_params){
        .solve = *s,
        .block = { .symmetric = symmetric,
                   .negative = m->negative,
                   .bits = s->bits,
                   .factors = symmetric ? plan.factors : plan.shrinks,
                   .scale_dtype = s->scale_dtype },
        .sweeps = plan.sweeps,
        .alpha = m->alpha,
        .beta = m->beta
    };
}

void module_report_refined(struct module_report *report,
                           const struct module_params *m, bool corrected,
                           const struct refined_result *r)
{
    report->effort = effort_names[m->effort];
    report->corrected = corrected;
    report->loss_gptq = r->loss_plain;
    report->rows_kept = r->kept;
}

static int open_refined(struct module_solver *m, const struct factor_params *p,
                        int starts, const float *h, struct err *e)
{
    int rc;

    if (device_gpu() && !m->on_cpu) {
        rc = refined_open(&m->refined, p, starts, h, true, e);
        if (!device_declined(&rc, e))
            return rc;
    }
    return refined_open(&m->refined, p, starts, h, false, e);
}

/* *h = the entry's Hessian with the prior, which the caller owns: the one kept
 * in m->hessian, or read.  Drops the last Hessian's factors. */
static int load_hessian(struct module_solver *m, struct hessian_entry *entry,
                        float **h, struct err *e)
{
    int rc;

    *h = m->entry == entry ? m->hessian : NULL;
    if (*h)
        m->hessian = NULL;
    drop_factors(m);
    if (*h)
        return 0;
    if ((rc = hessian_file_load(m->hessians, entry, h, e)) < 0)
        return rc;
    /* experts' Hessians have their prior from forge-hessian (blend.h) */
    m->prior = tensor_name_is_expert(entry->name) ?
                   0 :
                   hessian_file_add_prior(entry, m->params.prior, *h);
    return 0;
}

/* Whether H must be kept beside its factors: the CPU may have to take over from
 * the GPU, Fisher descent reads it, or another module on it, which came in the stream
 * once, may have another group. */
static bool wants_hessian(const struct module_solver *m,
                          const struct hessian_entry *entry)
{
    return device_gpu() || m->fishers ||
           (entry == hessian_file_taken(m->hessians) && entry->modules &&
            strchr(entry->modules, '\n'));
}

static void give_hessian(struct module_solver *m)
{
    free(m->hessian);
    m->hessian = NULL;
}

static int build_factor(struct module_solver *m, struct hessian_entry *entry,
                        uint64_t cols, uint64_t group, bool early,
                        struct err *e)
{
    struct factor_params p = { .cols = cols,
                               .block = entry->block,
                               .group = group,
                               .order = m->params.order,
                               .damping = m->params.damping };
    struct effort_plan plan = module_effort(&m->params, group);
    float *h;
    int rc;

    if (m->entry == entry && m->cols == cols && m->group == group) {
        if (m->early && !wants_hessian(m, entry))
            give_hessian(m);
        m->early = false;
        return 0;
    }
    m->on_cpu &= m->entry == entry;
    if ((rc = load_hessian(m, entry, &h, e)) < 0)
        return rc;
    rc = plan.starts ? open_refined(m, &p, plan.starts, h, e) :
                       solve_build(&m->factor, &p, h, e);
    m->hessian = h;
    m->early = early;
    if (!wants_hessian(m, entry) && !early)
        give_hessian(m);
    if (rc < 0)
        return err_prefix(e, "'%s'", entry->name);
    m->failed = rc > 0;
    m->entry = entry;
    m->cols = cols;
    m->group = group;
    return 0;
}

/* Factors at once, with the last module's group size, while the weights are
 * still on their way. */
int module_hessian(struct module_solver *m, const struct frame *f,
                   struct err *e)
{
    struct hessian_entry *entry;
    int rc;

    drop_factors(m);
    if ((rc = hessian_file_take(m->hessians, f, e)) < 0)
        return rc;
    entry = hessian_file_taken(m->hessians);
    if (!m->group || m->params.nearest || device_gpu() || !f->modules ||
        !*f->modules || entry->block)
        return 0;
    return build_factor(m, entry, entry->cols, m->group, true, e);
}

/* *f: the factor to use, or NULL: round to nearest. */
static int choose_factor(struct module_solver *m, const struct frame *w,
                         const struct frame *meta, struct factor **f,
                         struct module_report *report, struct err *e)
{
    struct hessian_entry *entry;
    struct factor *built;
    int rc;

    *f = NULL;
    if (!hessian_file_any(m->hessians))
        return 0;
    if ((rc = hessian_file_find(m->hessians, w->name, w->dims[1], &entry, e)) <
            0 ||
        (rc = build_factor(m, entry, w->dims[1], meta->group, false, e)) < 0)
        return rc;
    built = m->refined.starts ? m->refined.factor[0] : m->factor;
    module_report_factor(report, w->name, built, entry->samples);
    if (!m->failed) {
        *f = built;
        return 0;
    }
    if (m->params.strict)
        return err_set(e, E_DATA,
                       "'%s': its hessian '%s' is not positive definite, even "
                       "with damping %g",
                       w->name, entry->name, report->damping);
    m->fallbacks++;
    warning("'%s': its hessian '%s' is not positive definite, even with "
            "damping %g: rounded to nearest",
            w->name, entry->name, report->damping);
    return 0;
}

/* ---- cross moments ---- */

static char *copy(const char *s, struct err *e)
{
    char *p = mem_alloc(strlen(s) + 1, "solve", e);

    return p ? strcpy(p, s) : NULL;
}

int module_cross_kind(const struct frame *f, struct err *e)
{
    size_t len;
    enum companion kind = companion_of(f->name, &len);
    bool known = kind == COMPANION_DRIFT || kind == COMPANION_OUTPUT ||
                 kind == COMPANION_GAP;

    if (f->ndim != 2 || f->dtype != DT_F32 || !f->modules || !known ||
        (kind == COMPANION_DRIFT && f->dims[0] != f->dims[1]))
        return err_set(e, E_DATA, "'%s': not a cross moment", f->name);
    return (int)kind;
}

int module_cross(struct module_solver *m, const struct frame *f, struct err *e)
{
    int kind = module_cross_kind(f, e);
    struct cross *c = kind == COMPANION_DRIFT  ? &m->drift :
                      kind == COMPANION_OUTPUT ? &m->output :
                                                 &m->gap;

    if (kind < 0)
        return kind;
    drop_cross(c);
    target_close(&m->refined.target);
    c->rows = f->dims[0];
    c->cols = f->dims[1];
    c->name = copy(f->name, e);
    c->modules = c->name ? copy(f->modules, e) : NULL;
    c->data = c->modules ? mem_pages(f->len, f->name, e) : NULL;
    if (!c->data)
        return e->code;
    memcpy(c->data, f->data, f->len);
    return 0;
}

/* 1: the moment is for this module; 0: for others; E_DATA: wrong shape. */
static int cross_of(const struct cross *c, const struct frame *w, uint64_t rows,
                    struct err *e)
{
    struct frame f = { .modules = c->modules };

    if (!c->name || !frame_has_module(&f, w->name))
        return 0;
    if (c->rows == rows && c->cols == w->dims[1])
        return 1;
    return err_set(e, E_DATA, "'%s' does not fit '%s'", c->name, w->name);
}

/* *output = G + prior W, in new memory: free() it.  The Hessian in use is
 * H + prior I, so that target.h's G - W H becomes
 * (G + prior W) - W (H + prior I): the prior cancels.  Without this it would
 * pull the weights towards zero. */
static int add_prior(const struct module_solver *m, const struct frame *w,
                     float **output, struct err *e)
{
    uint64_t n = m->output.rows * m->output.cols;
    float *to = mem_pages(n * sizeof(*to), w->name, e);

    *output = to;
    if (!to)
        return e->code;
    if (!to_f32(to, w->data, w->dtype, n)) {
        free(to);
        return err_set(e, E_BUG, "'%s': no weight", w->name);
    }
    for (uint64_t i = 0; i < n; i++)
        to[i] = m->output.data[i] + (float)m->prior * to[i];
    return 0;
}

/* ---- Fisher descent ---- */

/* *target: memory [rows, cols] for the target when there is an F for this
 * module; else NULL. */
static int want_target(const struct module_solver *m, const struct frame *w,
                       float **target, struct err *e)
{
    *target = NULL;
    if (!fishers_have(m->fishers, w->name))
        return 0;
    *target = mem_pages(w->dims[0] * w->dims[1] * sizeof(float), w->name, e);
    return *target ? 0 : e->code;
}

static int descend_fisher(const struct module_solver *m, const struct frame *w,
                          const struct refined_params *p, const float *fisher,
                          const uint32_t *grids, uint8_t *codes, double *loss,
                          struct err *e)
{
    const struct fisher_descent c = { .rows = w->dims[0],
                                      .group = p->solve.group,
                                      .bits = p->solve.bits,
                                      .scale_dtype = p->solve.scale_dtype,
                                      .sweeps = p->fisher_sweeps,
                                      .plan = &m->refined.plan[0],
                                      .hessian = m->hessian,
                                      .fisher = fisher,
                                      .target = p->target,
                                      .meta = grids };
    int64_t moved = fisher_descent(&c, codes, loss, e);

    return moved < 0 ? (int)moved : 0;
}

/* refined_solve(), then all rows together where there is an F: on the GPU, or
 * where that has no room for all rows, and without one, on the CPU. */
static int solve_rows(struct module_solver *m, const struct frame *w,
                      struct refined_params *p, uint32_t *grids, uint8_t *codes,
                      struct refined_result *r, struct err *e)
{
    const float *fisher = NULL;
    int rc;

    if (fishers_have(m->fishers, w->name) &&
        fishers_get(m->fishers, w->name, w->dims[0], &fisher, e) < 0)
        return e->code;
    p->fisher_sweeps =
        fishers_sweeps(m->params.sweeps, m->params.effort, w->name);
    if (fisher && refined_on_gpu(&m->refined)) {
        p->fisher = fisher;
        rc = refined_solve(p, &m->refined, w->data, grids, codes, r, e);
        if (rc != E_TEMP)
            return rc;
        p->fisher = NULL;
    }
    if ((rc = want_target(m, w, &p->target, e)) >= 0)
        rc = refined_solve(p, &m->refined, w->data, grids, codes, r, e);
    if (rc >= 0 && p->target)
        rc = descend_fisher(m, w, p, fisher, grids, codes, &r->solve.loss, e);
    free(p->target);
    return rc;
}

/* ---- one module ---- */

static int solve_refined(struct module_solver *m,
                         const struct solve_params *solve,
                         const struct frame *w, uint32_t *grids, uint8_t *codes,
                         struct module_report *report, struct solve_result *r,
                         struct err *e)
{
    struct refined_params p = module_refined(&m->params, solve, grids[0]);
    struct refined_result best = { .loss_plain = 0 };
    float *own = NULL;
    int drift = cross_of(&m->drift, w, w->dims[1], e), output, gap, rc;

    output = drift < 0 ? drift : cross_of(&m->output, w, w->dims[0], e);
    gap = output < 0 ? output : cross_of(&m->gap, w, w->dims[0], e);
    if (gap < 0)
        return gap;
    p.gap = gap;
    p.output = gap ? m->gap.data : output ? m->output.data : NULL;
    if (!drift && !p.output)
        target_close(&m->refined.target);
    else if (!m->refined.target.plan &&
             (rc = target_open(&m->refined.target, &m->refined.plan[0],
                               drift ? m->drift.data : NULL, e)) < 0)
        return err_prefix(e, "'%s'", drift ? m->drift.name : w->name);
    report->corrected = drift || p.output;
    if (output && !gap && m->prior > 0) {
        if ((rc = add_prior(m, w, &own, e)) < 0)
            return rc;
        p.output = own;
    }
    rc = solve_rows(m, w, &p, grids, codes, &best, e);
    free(own);
    if (m->fishers)
        fishers_done(m->fishers);
    *r = best.solve;
    module_report_refined(report, &m->params, report->corrected, &best);
    return rc;
}

struct solve_params module_shape(const struct frame *w,
                                 const struct frame *meta)
{
    struct name_rows rows = { 0 };
    size_t len;

    (void)name_rows_of(w->name, &len, &rows);
    return (struct solve_params){ .first = rows.first,
                                  .of = rows.of,
                                  .rows = w->dims[0],
                                  .cols = w->dims[1],
                                  .group = meta->group,
                                  .bits =
                                      quant_bits(*(const uint32_t *)meta->data),
                                  .dtype = w->dtype,
                                  .scale_dtype = meta->scale_dtype,
                                  .compare = true };
}

/* Plain GPTQ with the factor f; f NULL: round to nearest. */
static int solve_plain(const struct solve_params *p, const struct frame *w,
                       const uint32_t *grids, struct factor *f, uint8_t *codes,
                       struct solve_result *r, struct err *e)
{
    struct solve_input in = { .factor = f, .n = 1 };
    int rc;

    in.linear[0].params = *p;
    in.linear[0].w = w->data;
    in.linear[0].meta = grids;
    in.linear[0].codes = codes;
    rc = solve_inputs(&in, 1, e);
    *r = in.linear[0].result;
    return rc;
}

int module_solve(struct module_solver *m, const struct frame *w,
                 const struct frame *meta, uint32_t *grids, uint8_t *codes,
                 struct module_report *report, struct err *e)
{
    struct solve_params p;
    struct solve_result r;
    struct factor *f;
    double start = seconds_now();
    int rc;

    *report = (struct module_report){ .method = "rtn" };
    if ((rc = module_check(w, meta, e)) < 0 ||
        (rc = module_rows_alone(w->name, m->fishers, e)) < 0 ||
        (rc = choose_factor(m, w, meta, &f, report, e)) < 0)
        return rc;
    p = module_shape(w, meta);
    p.nearest = m->params.nearest;
    if (p.of && module_rows_tiles(&m->tiles, &p, report, e) < 0)
        return e->code;
    rc = f && m->refined.starts ?
             solve_refined(m, &p, w, grids, codes, report, &r, e) :
             solve_plain(&p, w, grids, f, codes, &r, e);
    if (rc < 0 && f && m->refined.starts && refined_on_gpu(&m->refined) &&
        device_declined(&rc, e)) { /* again, with factors of the CPU */
        m->on_cpu = true;
        m->cols = 0;
        return module_solve(m, w, meta, grids, codes, report, e);
    }
    if (rc < 0)
        return err_prefix(e, "'%s'", w->name);
    if (f)
        module_report_codes(report, p.nearest, m->params.order, &r);
    report->seconds = seconds_now() - start;
    return 0;
}
