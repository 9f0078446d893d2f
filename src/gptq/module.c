/* module.c - see module.h. */
#include "gptq/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/json.h"
#include "common/quant.h"

struct module_solver {
    struct module_params params;
    struct hfile *hessians;
    /* The factor of the last Hessian: of the modules that share an input. */
    struct factor *factor;
    const struct hfile_entry *entry;
    uint64_t cols, group;
    bool failed; /* no damping made it positive definite */
    uint64_t fallbacks;
};

static const char *const order_names[] = { "natural", "activation", "group" };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int module_open(struct module_solver **out, const struct module_params *p,
                struct err *e)
{
    struct module_solver *m = mem_zero(1, sizeof(*m), "solve", e);

    if (!m)
        return e->code;
    m->params = *p;
    if (p->hessian && hfile_open(&m->hessians, p->hessian, NULL, e) < 0) {
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
    factor_free(m->factor);
    hfile_close(m->hessians);
    free(m);
}

const char *module_head(const struct module_solver *m)
{
    return m->hessians ? hfile_head(m->hessians) : NULL;
}

uint64_t module_fallbacks(const struct module_solver *m)
{
    return m->fallbacks;
}

static int check_shapes(const struct frame *w, const struct frame *meta,
                        struct err *e)
{
    if (w->ndim != 2 || !dtype_is_float(w->dtype) || !w->dims[0] || !w->dims[1])
        return err_set(e, E_DATA, "'%s': a weight is a matrix of floats",
                       w->name);
    if (w->dims[1] % 2 || w->dims[1] > INT32_MAX)
        return err_set(e, E_DATA,
                       "'%s': %llu inputs: 4-bit codes want an even number",
                       w->name, (unsigned long long)w->dims[1]);
    if (meta->ndim != 2 || meta->dtype != DT_QMETA4 || !meta->group ||
        meta->dims[0] != w->dims[0] ||
        meta->dims[1] != quant_groups(w->dims[1], meta->group))
        return err_set(e, E_DATA, "'%s': its qmeta does not fit its weight",
                       w->name);
    if (meta->scale_dtype != DT_F16 && meta->scale_dtype != DT_BF16)
        return err_set(e, E_DATA, "'%s': qmeta with scales of type %s", w->name,
                       dtype_name(meta->scale_dtype));
    return 0;
}

static int build_factor(struct module_solver *m, struct hfile_entry *entry,
                        uint64_t cols, uint64_t group, struct err *e)
{
    struct factor_params p = { .cols = cols,
                               .block = entry->block,
                               .group = group,
                               .order = m->params.order,
                               .damping = m->params.damping };
    float *h;
    int rc;

    if (m->entry == entry && m->cols == cols && m->group == group)
        return 0;
    factor_free(m->factor);
    m->factor = NULL;
    m->entry = NULL;
    if ((rc = hfile_load(m->hessians, entry, &h, e)) < 0)
        return rc;
    rc = solve_build(&m->factor, &p, h, e);
    free(h);
    if (rc < 0)
        return err_prefix(e, "'%s'", entry->name);
    m->failed = rc > 0;
    m->entry = entry;
    m->cols = cols;
    m->group = group;
    return 0;
}

/* The factor to use, or NULL to round to nearest. */
static int choose_factor(struct module_solver *m, const struct frame *w,
                         const struct frame *meta, struct factor **f,
                         struct module_note *note, struct err *e)
{
    struct hfile_entry *entry;
    int rc;

    *f = NULL;
    if (!m->hessians)
        return 0;
    if ((rc = hfile_find(m->hessians, w->name, w->dims[1], &entry, e)) < 0 ||
        (rc = build_factor(m, entry, w->dims[1], meta->group, e)) < 0)
        return rc;
    note->samples = entry->samples;
    note->tried = m->factor->tried;
    note->n_tried = m->factor->n_tried;
    note->damping = m->factor->tried[m->factor->n_tried - 1];
    if (!m->failed) {
        *f = m->factor;
        return 0;
    }
    if (m->params.strict)
        return err_set(e, E_DATA,
                       "'%s': its hessian '%s' is not positive definite, even "
                       "with damping %g",
                       w->name, entry->name, note->damping);
    m->fallbacks++;
    warning("'%s': its hessian '%s' is not positive definite, even with "
            "damping %g: rounded to nearest",
            w->name, entry->name, note->damping);
    return 0;
}

int module_solve(struct module_solver *m, const struct frame *w,
                 const struct frame *meta, uint8_t *codes,
                 struct module_note *note, struct err *e)
{
    struct solve_params p = { .dtype = w->dtype,
                              .scale_dtype = meta->scale_dtype,
                              .group = meta->group,
                              .rows = w->dims[0],
                              .cols = w->dims[1],
                              .nearest = m->params.nearest,
                              .compare = true };
    struct solve_result r;
    struct factor *f;
    double start = now();
    int rc;

    *note = (struct module_note){ .method = "rtn" };
    if ((rc = check_shapes(w, meta, e)) < 0 ||
        (rc = choose_factor(m, w, meta, &f, note, e)) < 0)
        return rc;
    rc = solve_run(&p, w->data, meta->data, f, codes, &r, e);
    if (rc < 0)
        return err_prefix(e, "'%s'", w->name);
    if (f && !p.nearest) {
        note->method = "gptq";
        note->order = order_names[m->params.order];
    }
    note->measured = f != NULL;
    note->loss = r.loss;
    note->loss_rtn = r.loss_nearest;
    note->seconds = now() - start;
    return 0;
}

/* ---- notes ---- */

/* module: NULL leaves it out; seconds: said only where they may be. */
static void note_json(struct json_writer *w, const struct module_note *note,
                      const char *module, bool seconds)
{
    jw_begin(w, '{');
    if (module) {
        jw_key(w, "module");
        jw_string(w, module);
    }
    jw_key(w, "method");
    jw_string(w, note->method);
    if (note->order) {
        jw_key(w, "order");
        jw_string(w, note->order);
    }
    if (note->measured) {
        jw_key(w, "loss");
        jw_number(w, note->loss);
        jw_key(w, "loss_rtn");
        jw_number(w, note->loss_rtn);
    }
    if (note->n_tried) {
        jw_key(w, "samples");
        jw_int(w, (int64_t)note->samples);
        jw_key(w, "damping");
        jw_number(w, note->damping);
    }
    if (note->n_tried > 1 || (note->n_tried && !note->measured)) {
        jw_key(w, "damping_tried");
        jw_begin(w, '[');
        for (int i = 0; i < note->n_tried; i++)
            jw_number(w, note->tried[i]);
        jw_end(w, ']');
    }
    if (seconds) {
        jw_key(w, "seconds");
        jw_number(w, note->seconds);
    }
    jw_end(w, '}');
}

static int write_note(const struct json_writer *w, const char *module,
                      bool ancillary, struct stream_writer *out, struct err *e)
{
    struct frame f = { .role = ROLE_NOTE,
                       .dtype = DT_U8,
                       .ndim = 1,
                       .dims = { w->len },
                       .ancillary = ancillary,
                       .data = w->text,
                       .len = w->len };

    if (w->failed)
        return err_set(e, E_TEMP, "'%s': out of memory", module);
    snprintf(f.name, sizeof(f.name), "%s", module);
    return stream_write(out, &f, e);
}

int module_write(const struct module_note *note, const char *module,
                 struct stream_writer *out, struct publish *report,
                 struct err *e)
{
    struct json_writer w, t;
    int rc;

    jw_init(&w, 0);
    note_json(&w, note, NULL, false);
    rc = write_note(&w, module, false, out, e);
    jw_init(&t, 0);
    jw_begin(&t, '{');
    jw_key(&t, "seconds");
    jw_number(&t, note->seconds);
    jw_end(&t, '}');
    if (rc >= 0)
        rc = write_note(&t, module, true, out, e);
    free(w.text);
    free(t.text);
    if (rc < 0 || !report)
        return rc;
    jw_init(&w, 0);
    note_json(&w, note, module, true);
    rc = w.failed ? err_set(e, E_TEMP, "'%s': out of memory", module) :
                    publish_write(report, w.text, w.len, e);
    free(w.text);
    return rc < 0 ? rc : publish_write(report, "\n", 1, e);
}
